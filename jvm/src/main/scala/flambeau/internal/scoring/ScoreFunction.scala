package flambeau.internal.scoring

import flambeau.{DataException, TensorColumns}
import flambeau.jni.ScorerSpec
import flambeau.internal.model.{OutputColumn, OutputSpec}
import flambeau.internal.rows.{Columns, Expressions, Role}
import flambeau.internal.session.Settings
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.catalyst.expressions.{Expression, Unevaluable}
import org.apache.spark.sql.flambeau.{Functions, Plans}
import org.apache.spark.sql.types.{ArrayType, DataType, DoubleType, StructField, StructType}

/** A model as a function of SQL. A query has [[ScoreCall]]s of it, which [[ScoreCallRule]] has a [[Score]] compute.
  *
  * @param tensors
  *   the inputs, whose columns are the arguments
  * @param columns
  *   those that `transform` gives
  * @param output
  *   what the program returns
  */
private[flambeau] final case class ScoreFunction(
    name: String,
    tensors: Seq[TensorColumns],
    columns: Seq[OutputColumn],
    output: OutputSpec,
    spec: ScorerSpec,
    settings: Settings
) {

  /** The names of what a classifier gives, and of several outputs in columns of their own; none where the function gives the
    * only column itself.
    */
  def fields: Seq[String] =
    if (spec.fields.isEmpty && output.single.isEmpty && columns.forall(_.tensor.isDefined))
      columns.map(_.field.name)
    else spec.fields

  /** The outputs' types and contents, with arrays in place of vectors. */
  val outputs: Seq[(DataType, OutputContents)] = columns.map { column =>
    if (Columns.isVector(column.field.dataType))
      ArrayType(DoubleType, containsNull = false) -> OutputContents.ofClasses(output)
    else column.field.dataType -> OutputContents(column, output)
  }

  /** What a call gives. */
  def dataType: DataType =
    if (fields.isEmpty) outputs.head._1
    else StructType(fields.zip(outputs).map { case (field, (dtype, _)) => StructField(field, dtype) })

  /** Has the session know it, and plan its calls: before it looks at partitions, whose filters the driver computes, and copies
    * a plan for them.
    */
  def register(spark: SparkSession): Unit = {
    Scoring.teach(spark)
    Functions.optimizeBy(spark, ScoreCallRule)
    Functions.optimizeBy(spark, ScoreRule)
    Functions.register(spark, name)(arguments => ScoreCall(this, converted(spark, arguments)))
  }

  /** What scores rows with arguments of these types, as `converted` leaves them. */
  def task(arguments: Seq[DataType]): ScoringTask = {
    val columns =
      InputPlace.of(tensors).zip(arguments).map { case (place, dtype) => place.column(dtype).get }
    ScoringTask(spec, settings, columns, outputs)
  }

  /** The arguments, those that cannot be read as they are converted as `transform` converts columns. Throws DataException for
    * another number of them, and for types that no input is made of.
    */
  private def converted(spark: SparkSession, arguments: Seq[Expression]): Seq[Expression] = {
    val names = tensors.flatMap(_.columns)
    if (arguments.length != names.length)
      throw new DataException(
        s"the model takes ${names.length} columns (${names.mkString(", ")}), and got ${arguments.length}"
      )
    val rest = arguments.iterator
    tensors.flatMap { tensor =>
      val own = tensor.columns.map(_ -> rest.next())
      val schema = StructType(own.map { case (name, argument) => StructField(name, argument.dataType) })
      val at = own.toMap
      Columns.asTrained(schema, tensor)
      val conversions = Expressions(schema, tensor, Role.Input, name => Plans.column(at(name)))
      for (((name, argument), conversion) <- own.zip(conversions))
        yield
          if (InputReader(name, argument.dataType, tensor).isDefined) argument
          else Functions.expression(spark, conversion)
    }
  }
}

private[flambeau] object ScoreFunction {

  /** What functions use that the Spark that runs has not, if anything; `transform` has no need of it. */
  lazy val missing: Option[String] =
    Linkage.missing("flambeau.internal.scoring.ScoreFunction", getClass.getClassLoader)
}

/** A call of a model's function, which a batch of rows makes at once: [[ScoreCallRule]] puts what computes it below. */
private[flambeau] final case class ScoreCall(function: ScoreFunction, children: Seq[Expression])
    extends Expression
    with Unevaluable {
  override def dataType: DataType = function.dataType
  override def nullable: Boolean = true
  override def prettyName: String = function.name

  /** What plans show; the function has much of no interest, and options of stores. */
  protected override def stringArgs: Iterator[Any] = children.iterator

  protected override def withNewChildrenInternal(newChildren: IndexedSeq[Expression]): ScoreCall =
    copy(children = newChildren)
}
