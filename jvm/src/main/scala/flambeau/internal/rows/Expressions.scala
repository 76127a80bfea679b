package flambeau.internal.rows

import flambeau.{Check, TensorColumns}
import org.apache.spark.ml.functions.vector_to_array
import org.apache.spark.sql.{Column, DataFrame}
import org.apache.spark.sql.functions._
import org.apache.spark.sql.types._

/** The Spark expressions that convert columns to the values of tensors. */
private[flambeau] object Expressions {

  private val SqlTypes =
    Map(
      "float32" -> "float",
      "float64" -> "double",
      "int64" -> "bigint",
      "bool" -> "boolean",
      "uint8" -> "binary"
    )

  /** How to mend a column that holds nulls. */
  val Mend = "fill it (Imputer, DataFrame.fillna) or drop those rows (DataFrame.dropna)"

  /** One Spark expression for each column of the tensor, cast to the tensor's type and named as the column.
    *
    * Vectors and arrays become arrays of that type. A row with a null, a label that is NaN or a weight that is not a
    * finite number >= 0 fails the query, with a message that names the column; see [[Refusal]].
    *
    * @param at
    *   the column of a name, where it is not simply that
    */
  def apply(
      schema: StructType,
      tensor: TensorColumns,
      role: Role,
      at: String => Column = name => col(quoted(name))
  ): Seq[Column] = tensor.columns.map { name =>
    val field = Columns.findField(schema, name, role.name)
    expression(at(name), field, tensor, role).as(name)
  }

  /** The rows of a DataFrame as the param `handleInvalid` has them: by "skip" those without a null or a NaN in the columns of
    * these tensors, by "error" all, where one that has some fails the query with a message that names the column.
    */
  def validRows(df: DataFrame, tensors: Seq[TensorColumns], rule: String): DataFrame =
    if (rule == "keep") df
    else {
      val schema = df.schema
      val verdicts = tensors.flatMap(_.columns).distinct.map { name =>
        val refusal = Refusal.raise(
          s"column '$name' holds a null or a NaN, and handleInvalid is 'error': fill it (Imputer, DataFrame.fillna), or " +
            "set handleInvalid to 'skip', which leaves such rows out"
        )
        val invalid = isInvalid(col(quoted(name)), Columns.findField(schema, name, "input").dataType)
        when(invalid, if (rule == "skip") lit(false) else refusal.cast("boolean"))
      }
      // One flat expression: a filter for each of a thousand columns would be a plan of a thousand operators.
      df.where(coalesce(verdicts :+ lit(true): _*))
    }

  /** Whether a value is null, or holds a null or a NaN. */
  private def isInvalid(column: Column, dtype: DataType): Column = {
    val isFloat = Columns.isFloating(Columns.element(dtype))
    def isWrong(value: Column): Column = if (isFloat) value.isNull || isnan(value) else value.isNull
    if (Columns.depth(dtype) == 0 && !Columns.isVector(dtype)) isWrong(column)
    else {
      val values =
        if (Columns.isVector(dtype)) vector_to_array(column, "float64")
        // Null where one of the arrays in it is.
        else (1 until Columns.depth(dtype)).foldLeft(column)((nested, _) => flatten(nested))
      column.isNull || coalesce(exists(values, isWrong(_)), lit(true))
    }
  }

  /** A column's name as an expression that means this column, dots and all. */
  def quoted(name: String): String = "`" + name.replace("`", "``") + "`"

  private def expression(column: Column, field: StructField, tensor: TensorColumns, role: Role): Column = {
    val dtype = tensor.dtype
    val kind = Columns.element(field.dataType)
    val value = field.dataType match {
      case vector if Columns.isVector(vector) =>
        val wide = dtype == "float64" || dtype == "int64"
        val numbers = vector_to_array(column, if (wide) "float64" else "float32")
        castArray(numbers, if (wide) DoubleType else FloatType, dtype, field.name)
      case array: ArrayType =>
        val flat = (1 until Columns.depth(array)).foldLeft(column)((nested, _) => flatten(nested))
        refuseOtherShapes(column, castArray(flat, kind, dtype, field.name), field, tensor.shape)
      case _ => cast(column, kind, dtype, field.name)
    }
    refuseMissing(column, value, field, dtype, role)
  }

  /** `value` cast to `dtype`; numbers with a fraction are refused where integers are asked for. */
  private def cast(value: Column, kind: DataType, dtype: String, name: String): Column = {
    val whole =
      if (!asksForWhole(kind, dtype)) value
      else {
        val message = concat(
          lit(s"${Refusal.Begin}column '$name' holds "),
          value.cast("string"),
          lit(
            s", which is not a whole number, where $dtype is asked for: round it, or ask for float32${Refusal.End}"
          )
        )
        // floor(NaN) is 0, and Spark's own equality holds NaN equal to itself.
        when(floor(value) =!= value, raise_error(message)).otherwise(value)
      }
    whole.cast(SqlTypes(dtype))
  }

  /** An array's elements cast to `dtype`. */
  private def castArray(value: Column, kind: DataType, dtype: String, name: String): Column =
    if (asksForWhole(kind, dtype)) transform(value, element => cast(element, kind, dtype, name))
    else value.cast(s"array<${SqlTypes(dtype)}>")

  private def asksForWhole(kind: DataType, dtype: String): Boolean =
    (dtype == "int64" || dtype == "bool") && Columns.isFloating(kind)

  /** `value`, failing the query on nested arrays that are not of this shape; a shape of another number of dimensions is one
    * for their numbers in their order.
    */
  private def refuseOtherShapes(
      column: Column,
      value: Column,
      field: StructField,
      shape: Option[Seq[Int]]
  ): Column = {
    def has(array: Column, sizes: Seq[Int]): Column = {
      val right = size(array) === sizes.head
      if (sizes.length == 1) right else right && forall(array, has(_, sizes.tail))
    }
    shape.filter(sizes => sizes.length > 1 && sizes.length == Columns.depth(field.dataType)).fold(value) {
      sizes =>
        val refused =
          Refusal.raise(s"column '${field.name}' holds an array that is not of shape ${Check.show(sizes)}")
        when(column.isNull || has(column, sizes), value).otherwise(refused)
    }
  }

  /** `value`, failing the query on rows that no tensor can be made of. */
  private def refuseMissing(
      column: Column,
      value: Column,
      field: StructField,
      dtype: String,
      role: Role
  ): Column = {
    def refuse(what: String): Column = Refusal.raise(s"column '${field.name}' $what")

    val nulls = when(column.isNull, refuse(s"holds a null: $Mend"))
    val guarded = role match {
      case Role.Label if dtype.startsWith("float") =>
        val single = Columns.columnShape(field).contains(Nil)
        val nan = if (single) isnan(value) else exists(value, element => isnan(element))
        nulls.when(nan, refuse(s"is the label and holds a NaN: $Mend"))
      case Role.Weight =>
        val wrong = isnan(value) || value < 0 || value === Double.PositiveInfinity
        nulls.when(
          wrong,
          refuse("is the weight and holds a value that is not a finite number >= 0: drop those rows")
        )
      case _ => nulls
    }
    guarded.otherwise(value)
  }
}
