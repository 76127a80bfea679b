package flambeau.internal.scoring

import flambeau.TensorColumns
import flambeau.jni.{ScorerSpec, TensorRows}
import flambeau.internal.model.{OutputField, OutputSpec}
import flambeau.internal.rows.{Expressions, Role}
import flambeau.internal.session.Settings
import org.apache.spark.sql.{Column, DataFrame, SparkSession}
import org.apache.spark.sql.catalyst.expressions.{Alias, Attribute, AttributeReference}
import org.apache.spark.sql.catalyst.plans.logical.{LogicalPlan, Project}
import org.apache.spark.sql.flambeau.Plans
import org.apache.spark.sql.types._

/** The plan of `transform`: a [[Score]] over the DataFrame's own plan.
  *
  * Columns whose numbers only have to be cast are read as they are. Others, such as decimals, are converted by the
  * expressions that wrote the training shards, in columns beside them that the result does not have.
  */
private[flambeau] object Scoring {

  def apply(
      tensors: Seq[TensorColumns],
      outputs: Seq[OutputField],
      output: OutputSpec,
      spec: ScorerSpec,
      df: DataFrame,
      settings: Settings
  ): DataFrame = {
    val plan = Plans.of(df)
    val sources = tensors.zipWithIndex.flatMap { case (tensor, input) => sourcesOf(df, plan, tensor, input) }
    val conversions = sources.flatMap(_.conversion)
    val child =
      if (conversions.isEmpty) plan
      else Plans.of(df.select(plan.output.map(Plans.column) ++ conversions: _*))
    val converted = child.output.drop(plan.output.length).iterator
    val inputs = sources.map(source => if (source.conversion.isEmpty) source.attribute else converted.next())

    val predictions = outputs.map(_.field).map(field =>
      AttributeReference(field.name, field.dataType, field.nullable, field.metadata)()
    )
    val task = ScoringTask(
      spec,
      settings,
      sources.zip(inputs).map { case (source, input) => source.read(input.dataType) },
      outputs.map(column => column.field.dataType -> OutputColumn(column, output))
    )
    teach(df.sparkSession)
    // Aliases are what Spark renews where a frame is joined with itself.
    val named = predictions.map(prediction => Alias(prediction, prediction.name)())
    Plans.toFrame(df, Project(plan.output ++ named, Score(task, inputs, predictions, child)))
  }

  /** Has a session plan [[Score]] and optimize around it. Sessions that Spark derives from it, such as a stream's, know it too. */
  def teach(spark: SparkSession): Unit = synchronized {
    val known = spark.experimental
    if (!known.extraStrategies.contains(ScoreStrategy)) known.extraStrategies :+= ScoreStrategy
    if (!known.extraOptimizations.contains(LateScoreRule)) known.extraOptimizations :+= LateScoreRule
  }

  /** A column that the program reads.
    *
    * @param input
    *   the number of its tensor
    * @param offset
    *   where it begins in a row of the tensor, in bytes
    * @param conversion
    *   what is read in the column's place, where it cannot be read as it is
    */
  private final case class Source(
      attribute: Attribute,
      tensor: TensorColumns,
      input: Int,
      offset: Int,
      conversion: Option[Column]
  ) {

    /** How a column of this type is read, the attribute itself or its conversion. */
    def read(dtype: DataType): InputColumn =
      InputColumn(input, offset, InputReader(attribute.name, dtype, tensor).get)
  }

  /** The columns of a tensor. Several hold one element each, one holds all. */
  private def sourcesOf(df: DataFrame, plan: LogicalPlan, tensor: TensorColumns, input: Int): Seq[Source] = {
    val schema = df.schema
    def attribute(name: String): Attribute = plan.output(schema.fieldIndex(name))
    val conversions = Expressions(schema, tensor, Role.Input, name => Plans.column(attribute(name)))
    tensor.columns.zip(conversions).zipWithIndex.map { case ((name, conversion), index) =>
      val found = attribute(name)
      val isRead = InputReader(name, found.dataType, tensor).isDefined
      Source(
        found,
        tensor,
        input,
        index * TensorRows.elementSize(tensor.dtype),
        if (isRead) None else Some(conversion)
      )
    }
  }
}
