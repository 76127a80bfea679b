package flambeau.internal.rows

import flambeau.{Check, DataException, HasInputColumns, ParamException, TensorColumns}
import flambeau.internal.util.{Json, Similarity}
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.types._

/** From DataFrame columns to tensors: which columns make which tensor, and of what type.
  *
  * [[Expressions]] converts them, for training and for `transform` alike, so that a model scores what it was trained on.
  */
private[flambeau] object Columns {
  private val Mends = Map(
    "string" -> "index it (StringIndexer) or cast it to a number",
    "date" -> "turn it into a number, for example with unix_date or datediff",
    "timestamp" -> "cast it to a number, for example with unix_timestamp",
    "timestamp_ntz" -> "cast it to a number, for example with unix_timestamp",
    "struct" -> "select its fields as columns of their own",
    "map" -> "select its values as columns of their own",
    "matrix" -> "turn it into an array of numbers and give its shape in inputShapes"
  )

  // Other types may have the same simple name, and another layout.
  val VectorTypes: Seq[String] =
    Seq("org.apache.spark.ml.linalg.VectorUDT", "org.apache.spark.mllib.linalg.VectorUDT")

  /** The input tensors, in the order of forward's arguments, that the params ask for on a DataFrame of this schema.
    *
    * Throws DataException for a column that is missing or of a type that no tensor is made of, and ParamException for
    * names, shapes or types that do not fit their columns.
    */
  def resolveInputs(schema: StructType, params: HasInputColumns): Seq[TensorColumns] = {
    val grouped = inputColumns(params)
    val names = params.valueOf(params.inputNames).fold(grouped.map(_._1))(_.toSeq)
    val shapes =
      params.valueOf(params.inputShapes).fold(grouped.map(_ => Seq.empty[Int]))(_.toSeq.map(_.toSeq))
    val types = params.valueOf(params.inputTypes).fold(grouped.map(_ => "auto"))(_.toSeq)
    for (
      (name, entries) <- Seq("inputNames" -> names, "inputShapes" -> shapes, "inputTypes" -> types)
      if entries.length != grouped.length
    )
      throw new ParamException(
        s"$name has ${entries.length} entries, and there are ${grouped.length} inputs: ${Check.show(grouped.map(_._1))}"
      )
    for (((name, (_, columns)), (shape, dtype)) <- names.zip(grouped).zip(shapes.zip(types))) yield {
      val tensor = resolveTensor(schema, name, columns, Some(dtype).filter(_ != "auto"), Role.Input)
      withShape(tensor, shape)
    }
  }

  /** The inputs in the order of these arguments, where inputNames says which one each is for. Throws ParamException where
    * these are not the first ones.
    */
  def inOrder(
      inputs: Seq[TensorColumns],
      params: HasInputColumns,
      arguments: Seq[String]
  ): Seq[TensorColumns] =
    params.valueOf(params.inputNames).fold(inputs) { names =>
      val first = arguments.take(names.length)
      if (first.toSet != names.toSet)
        throw new ParamException(
          s"inputNames is ${Check.show(names)}, but must name the first of forward's arguments, in any order: " +
            arguments.mkString(", ")
        )
      first.map(name => inputs(names.indexOf(name)))
    }

  /** The tensor that these columns make; without a `dtype` it follows the columns' types.
    *
    * Throws DataException for a missing column or a type that no tensor is made of.
    */
  def resolveTensor(
      schema: StructType,
      name: String,
      columns: Seq[String],
      dtype: Option[String],
      role: Role
  ): TensorColumns = {
    val fields = columns.map(findField(schema, _, role.name))
    if (columns.length > 1)
      for (wrong <- fields.find(columnShape(_) != Some(Nil)))
        throw new DataException(
          s"column '${wrong.name}' is ${typeName(wrong.dataType)}; columns that are packed into one tensor are single " +
            "numbers: give arrays and vectors as inputs of their own, in inputCols"
        )
    val found = fields.map(naturalDtype(_, role)).distinct
    val chosen = dtype.getOrElse(if (found.length == 1) found.head else common(found))
    fields.foreach(checkDtype(_, chosen, role))
    val shape = if (columns.length > 1) Some(Seq(columns.length)) else columnShape(fields.head)
    TensorColumns(name, columns, chosen, shape)
  }

  /** The tensor, which has the type and the shape that were trained on, where its columns can be it. Throws DataException where
    * they cannot, or hold another number of numbers in a row.
    */
  def asTrained(schema: StructType, tensor: TensorColumns): TensorColumns = {
    val found = resolveTensor(schema, tensor.name, tensor.columns, Some(tensor.dtype), Role.Input)
    if (found.shape.isDefined && found.numElements != tensor.numElements)
      throw new DataException(
        s"input '${tensor.name}' (${tensor.columns.mkString(", ")}) has ${found.numElements} numbers in a row, " +
          s"where ${tensor.numElements} were trained on"
      )
    tensor
  }

  /** The schema's field of that name. Throws DataException that lists what there is, and where several are called so. */
  def findField(schema: StructType, column: String, role: String): StructField = {
    val field = schema.fields.find(_.name == column).getOrElse {
      val hint = Similarity.suggestion(column, schema.fieldNames.toSeq)
      throw new DataException(
        s"no column '$column' for the $role: the DataFrame has ${schema.fieldNames.mkString(", ")}$hint"
      )
    }
    val same = schema.fieldNames.filter(isSame(_, column))
    if (same.length > 1) {
      val why = if (same.distinct.length > 1)
        ", which are one name to Spark (spark.sql.caseSensitive is false)"
      else ""
      throw new DataException(
        s"column '$column' for the $role is not the only one of that name: the DataFrame has ${same.mkString(", ")}$why; " +
          "rename or drop all but one"
      )
    }
    field
  }

  /** Whether two names mean the same column to Spark, which ignores case unless spark.sql.caseSensitive is set. */
  def isSame(one: String, other: String): Boolean = one == other || one.equalsIgnoreCase(other) && {
    val session = SparkSession.getActiveSession.orElse(SparkSession.getDefaultSession)
    !session.exists(_.conf.get("spark.sql.caseSensitive", "false").equalsIgnoreCase("true"))
  }

  /** Spark's name of a type, as users write it: `string`, `array<float>`, `vector`. */
  def typeName(dtype: DataType): String = {
    val name = dtype.getClass.getSimpleName
    if (name.endsWith("UDT")) name.stripSuffix("UDT").toLowerCase else dtype.simpleString
  }

  /** Whether a column of this type holds Spark ML (or MLlib) vectors. */
  def isVector(dtype: DataType): Boolean = VectorTypes.contains(dtype.getClass.getName)

  /** How many arrays are nested in a type. */
  def depth(dtype: DataType): Int = dtype match {
    case ArrayType(element, _) => 1 + depth(element)
    case _                     => 0
  }

  /** A type's innermost element: double for a vector. */
  def element(dtype: DataType): DataType = dtype match {
    case vector if isVector(vector) => DoubleType
    case ArrayType(inner, _)        => element(inner)
    case other                      => other
  }

  /** Whether a type's numbers may have a fraction. */
  def isFloating(dtype: DataType): Boolean = dtype match {
    case FloatType | DoubleType | _: DecimalType => true
    case _                                       => false
  }

  /** The shape that a column gives: empty for single numbers, `Seq(n)` where metadata says a vector's size, else none. */
  def columnShape(field: StructField): Option[Seq[Int]] = field.dataType match {
    case vector if isVector(vector) =>
      val attributes = Json.parse(field.metadata.json).path("ml_attr")
      val size = attributes.path("num_attrs").asInt(Json.items(attributes.path("attrs")).map(_.size).sum)
      if (size > 0) Some(Seq(size)) else None
    case _: ArrayType | BinaryType => None
    case _                         => Some(Nil)
  }

  /** The inputs' names and, for each, its columns. */
  private def inputColumns(params: HasInputColumns): Seq[(String, Seq[String])] =
    (params.valueOf(params.inputCols), params.valueOf(params.featuresCols)) match {
      case (_, Some(packed)) if params.isSet(params.featuresCol) =>
        throw new ParamException(
          s"featuresCol (${Check.show(params.getFeaturesCol)}) and featuresCols (${Check.show(packed)}) are both set: " +
            "clear one of them"
        )
      case (Some(columns), _)   => columns.toSeq.map(column => column -> Seq(column))
      case (None, Some(packed)) => Seq("features" -> packed.toSeq)
      case (None, None)         => Seq(params.getFeaturesCol -> Seq(params.getFeaturesCol))
    }

  /** The tensor with the shape that inputShapes gives it; an empty one leaves it. */
  private def withShape(tensor: TensorColumns, shape: Seq[Int]): TensorColumns = {
    if (shape.isEmpty) tensor
    else {
      for (known <- tensor.shape if known.product != shape.product)
        throw new ParamException(
          s"inputShapes gives ${Check.show(shape)} (${shape.product} numbers) to input '${tensor.name}', " +
            s"and its columns hold ${known.product} in a row"
        )
      tensor.copy(shape = Some(shape))
    }
  }

  /** The tensor type that a column gives when nothing else is asked for; refuses a type that gives none. */
  private def naturalDtype(field: StructField, role: Role): String = element(field.dataType) match {
    case _ if isVector(field.dataType)                 => "float32"
    case kind if isFloating(kind)                      => if (isNominal(field)) "int64" else "float32"
    case ByteType | ShortType | IntegerType | LongType => "int64"
    case BooleanType                                   => "bool"
    case BinaryType                                    => "uint8"
    case kind =>
      val name = typeName(field.dataType)
      val mend = Mends.getOrElse(
        name,
        Mends.getOrElse(kind.typeName, "select columns of numbers, booleans, arrays of them, or vectors")
      )
      val article = if (role == Role.Input) "an" else "a"
      throw new DataException(s"column '${field.name}' is $name, which cannot be $article $role: $mend")
  }

  /** Whether a column's numbers are categories, as those of a StringIndexer. */
  private def isNominal(field: StructField): Boolean = {
    val kind = Json.parse(field.metadata.json).path("ml_attr").path("type").asText
    kind == "nominal" || kind == "binary"
  }

  /** The type that columns of different types are packed as. */
  private def common(dtypes: Seq[String]): String =
    if (dtypes.forall(Seq("int64", "bool").contains)) "int64" else "float32"

  /** Refuses a column that cannot become a tensor of `dtype`. */
  private def checkDtype(field: StructField, dtype: String, role: Role): Unit = {
    val natural = naturalDtype(field, role)
    if ((natural == "uint8") != (dtype == "uint8"))
      throw new DataException(
        s"column '${field.name}' is ${typeName(field.dataType)}, which gives $natural and cannot be read as $dtype"
      )
  }
}
