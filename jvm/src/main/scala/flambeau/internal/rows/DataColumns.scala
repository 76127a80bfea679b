package flambeau.internal.rows

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.{DataException, HasLabelColumns, HasTrainingParams, TensorColumns}
import flambeau.internal.rows.Expressions.quoted
import flambeau.internal.util.Json
import org.apache.spark.sql.{Column, DataFrame}
import org.apache.spark.sql.functions.{col, rand, when}
import org.apache.spark.sql.types.{BooleanType, StructType}

/** Which rows are for validation: those of a boolean column, or a seeded random fraction. */
private[flambeau] sealed trait Split {

  /** Whether a row is for validation. */
  def flag: Column

  /** As prepared data have it. */
  def json: ObjectNode
}

private[flambeau] object Split {

  /** The partition column that separates validation rows; its name is not one that a user's column has. */
  val Flag = "flambeau_validation"

  final case class Indicator(name: String) extends Split {
    override def flag: Column = {
      val column = col(quoted(name))
      val message = s"column '$name' holds a null: it says of each row whether it is for validation"
      when(column.isNull, Refusal.raise(message)).otherwise(column)
    }

    override def json: ObjectNode = Json.obj().set[ObjectNode]("indicator", Json.obj().put("column", name))
  }

  final case class Fraction(fraction: Double, seed: Long) extends Split {
    override def flag: Column = rand(seed) < fraction

    override def json: ObjectNode =
      Json.obj().set[ObjectNode]("fraction", Json.obj().put("fraction", fraction).put("seed", seed))
  }
}

/** The tensors of a training, in terms of a DataFrame's columns, and how its rows are split. */
private[flambeau] final case class DataColumns(
    inputs: Seq[TensorColumns],
    labels: Seq[TensorColumns],
    weight: Option[TensorColumns],
    split: Option[Split],
    handleInvalid: String = "keep"
) {

  /** The rows of the DataFrame that these are columns of, as the param has them. */
  def valid(df: DataFrame): DataFrame = Expressions.validRows(df, inputs, handleInvalid)

  /** Every tensor with what it is for. */
  def tensors: Seq[(TensorColumns, Role)] =
    inputs.map(_ -> Role.Input) ++ labels.map(_ -> Role.Label) ++ weight.map(_ -> Role.Weight)

  /** The columns of all tensors, each once. */
  def names: Seq[String] = tensors.flatMap(_._1.columns).distinct

  /** The same with every tensor replaced. */
  def map(change: (TensorColumns, Role) => TensorColumns): DataColumns = copy(
    inputs.map(change(_, Role.Input)),
    labels.map(change(_, Role.Label)),
    weight.map(change(_, Role.Weight))
  )

  /** The tensors as the training job's `data.spec` names them. */
  def specJson: ObjectNode = {
    val json = Json.obj()
    json.replace("inputs", Json.array(inputs.map(_.json)))
    json.replace("labels", Json.array(labels.map(_.json)))
    json.replace("weight", Json.of(weight.map(_.json), "weight"))
    json
  }
}

private[flambeau] object DataColumns {

  /** The columns that a fit reads from a DataFrame of this schema, with the inputs in the order of forward's arguments, and
    * how it splits the rows. Throws DataException and ParamException as [[Columns.resolveInputs]] and [[Columns.inOrder]] do.
    */
  def resolve(schema: StructType, reading: Reading): DataColumns =
    tensors(schema, reading)
      .copy(split = split(schema, reading.params), handleInvalid = reading.params.getHandleInvalid)

  /** The tensors that a `data.spec` has, with that split: the inverse of `specJson`. */
  def of(spec: JsonNode, split: Option[Split]): DataColumns = DataColumns(
    Json.items(spec.get("inputs")).map(TensorColumns.of),
    Json.items(spec.get("labels")).map(TensorColumns.of),
    Option(spec.get("weight")).filterNot(_.isNull).map(TensorColumns.of),
    split
  )

  /** What `resolve` gives, without the split. */
  private def tensors(schema: StructType, reading: Reading): DataColumns = {
    val params = reading.params
    val (labels, weight) = targets(schema, params, reading.labelDtype, reading.isWide)
    val inputs = Columns.inOrder(Columns.resolveInputs(schema, params), params, reading.arguments)
    DataColumns(inputs, labels, weight, None)
  }

  /** The labels and the weight that params name; `labelDtype` and `isWide` are as [[Reading]] has them. Throws DataException as
    * [[Columns.resolveTensor]] does.
    */
  def targets(
      schema: StructType,
      params: HasLabelColumns,
      labelDtype: Option[String],
      isWide: Boolean
  ): (Seq[TensorColumns], Option[TensorColumns]) = {
    val labelCols = params.valueOf(params.labelCols).fold(Seq(params.getLabelCol))(_.toSeq)
    val labels =
      labelCols.map(name => Columns.resolveTensor(schema, name, Seq(name), labelDtype, Role.Label))
    val weight = params.valueOf(params.weightCol).map { name =>
      val tensor = Columns.resolveTensor(schema, name, Seq(name), Some("float32"), Role.Weight)
      if (!tensor.shape.contains(Nil)) {
        val dtype = Columns.findField(schema, name, "weight").dataType
        throw new DataException(
          s"column '$name' is ${Columns.typeName(dtype)}; the weight of a row is a single number"
        )
      }
      widen(tensor, isWide)
    }
    (labels.map(widen(_, isWide)), weight)
  }

  private def widen(tensor: TensorColumns, isWide: Boolean): TensorColumns =
    if (isWide && tensor.dtype == "float32") tensor.copy(dtype = "float64") else tensor

  /** How the params split the rows; none where all rows are trained on. */
  private def split(schema: StructType, params: HasTrainingParams): Option[Split] =
    params.valueOf(params.validationIndicatorCol) match {
      case Some(name) =>
        val dtype = Columns.findField(schema, name, "validation indicator").dataType
        if (dtype != BooleanType)
          throw new DataException(
            s"column '$name' is ${Columns.typeName(dtype)}; validationIndicatorCol names a boolean column: " +
              s"""cast it, for example with col("$name") === 1"""
          )
        Some(Split.Indicator(name))
      case None if params.getValidationFraction > 0 =>
        Some(Split.Fraction(params.getValidationFraction, params.getSeed))
      case None => None
    }
}
