package flambeau.internal.scoring

import flambeau.TensorColumns
import flambeau.jni.ScorerSpec
import flambeau.internal.model.{OutputColumn, OutputSpec}
import flambeau.internal.rows.{Expressions, Role}
import flambeau.internal.session.Settings
import org.apache.spark.sql.{Column, DataFrame, SparkSession}
import org.apache.spark.sql.catalyst.expressions.{Alias, Attribute, AttributeReference}
import org.apache.spark.sql.catalyst.plans.logical.{LogicalPlan, Project}
import org.apache.spark.sql.flambeau.Plans

/** The plan of `transform`: a [[Score]] over the DataFrame's own plan.
  *
  * Columns whose numbers only have to be cast are read as they are. Others, such as decimals, are converted by the
  * expressions that wrote the training shards, in columns beside them that the result does not have.
  */
private[flambeau] object Scoring {

  def apply(
      tensors: Seq[TensorColumns],
      outputs: Seq[OutputColumn],
      output: OutputSpec,
      spec: ScorerSpec,
      df: DataFrame,
      settings: Settings
  ): DataFrame = {
    val plan = Plans.of(df)
    val sources = sourcesOf(df, plan, tensors)
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
      sources.zip(inputs).map { case (source, input) => source.place.column(input.dataType).get },
      outputs.map(column => column.field.dataType -> OutputContents(column, output))
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

  /** A column that the program reads, the attribute itself or, where it cannot be read as it is, its conversion. */
  private final case class Source(attribute: Attribute, place: InputPlace, conversion: Option[Column])

  private def sourcesOf(df: DataFrame, plan: LogicalPlan, tensors: Seq[TensorColumns]): Seq[Source] = {
    val schema = df.schema
    def attribute(name: String): Attribute = plan.output(schema.fieldIndex(name))
    val conversions =
      tensors.flatMap(Expressions(schema, _, Role.Input, name => Plans.column(attribute(name))))
    InputPlace.of(tensors).zip(conversions).map { case (place, conversion) =>
      val found = attribute(place.name)
      Source(found, place, if (place.column(found.dataType).isDefined) None else Some(conversion))
    }
  }
}
