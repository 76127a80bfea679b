package flambeau.internal.rows

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.{DataException, HasLabelColumns, HasTrainingParams, TensorColumns}
import flambeau.internal.rows.Expressions.quoted
import flambeau.internal.util.Json
import org.apache.spark.ml.functions.vector_to_array
import org.apache.spark.sql.{Column, DataFrame}
import org.apache.spark.sql.functions._
import org.apache.spark.sql.types.{BinaryType, BooleanType, DataType, StructField, StructType}

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

  /** The same with the shapes of nested arrays, where none is given that of the first row that has one in each: no null and no
    * empty array. All rows are held to it as they are read. Then the first rows of the DataFrame are computed; throws
    * DataException for a row of these that is refused.
    */
  def withNestedShapes(df: DataFrame): DataColumns = withFirstShapes(df, Columns.depth(_) > 1)

  /** The same with the shapes of all arrays and vectors. */
  def withShapes(df: DataFrame): DataColumns = withFirstShapes(df, _ => true)

  private def withFirstShapes(df: DataFrame, isMeant: DataType => Boolean): DataColumns = {
    val sought = tensors.map(_._1).filter(_.shape.isEmpty).map(_.columns.head).distinct
      .map(df.schema(_)).filter(field => isMeant(field.dataType))
    val sizes = sought.map(DataColumns.sizes)
    val row =
      if (sought.isEmpty) None
      else
        // What is cached is computed whole, with the values that are refused.
        Refusal.told {
          df.where(sizes.map(forall(_, _ > 0)).reduce(_ && _)).select(sizes: _*).take(1).headOption
        }
    row.fold(this) { first =>
      val shapes = sought.map(_.name).zip(sought.indices.map(first.getSeq[Int](_))).toMap
      map((tensor, _) => tensor.copy(shape = tensor.shape.orElse(shapes.get(tensor.columns.head))))
    }
  }

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

  /** A column's sizes, those of its first array in each; one that is null has none. */
  private def sizes(field: StructField): Column = {
    val column = col(quoted(field.name))
    field.dataType match {
      case vector if Columns.isVector(vector) =>
        array(when(column.isNotNull, size(vector_to_array(column))))
      case BinaryType => array(length(column))
      case nested     => array(Seq.iterate(column, Columns.depth(nested))(get(_, lit(0))).map(size(_)): _*)
    }
  }

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
