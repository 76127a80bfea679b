package flambeau

import flambeau.jni.{ScorerSpec, TensorRows}
import org.apache.spark.sql.{Column, DataFrame, Dataset, Encoder, Encoders, Row}
import org.apache.spark.sql.functions._
import org.apache.spark.sql.types._

/** The plan of `transform`: rows go through [[ScoringTask]] in batches, and come out with the outputs' columns.
  *
  * Beside the row, the task gets an array of primitives for each input that is not a vector, made by the expressions that
  * wrote the training shards. Columns are carried by position, so that two of one name do no harm.
  */
private[flambeau] object Scoring {

  def apply(model: TorchModel, outputs: Seq[(String, StructField)], df: DataFrame): DataFrame = {
    val schema = df.schema
    val tensors = model.inputsOf(schema)
    val fields = schema.fields.toSeq
    val carried = fields.map(field => Carried(field.dataType))
    val places = fields.indices.map(index => s"c$index")
    val rowSchema = StructType(fields.zip(carried).zip(places).map { case ((field, how), place) =>
      StructField(place, how.dtype, field.nullable)
    })

    val packed = carried.zip(places).map { case (how, place) => how.pack(col(place)).as(place) }
    val inputs = tensors.map(input(df, _))
    val (arrays, arrayEncoder) = nested(inputs.flatMap(_.array).toList)
    val rows = df
      .toDF(places: _*)
      .select(struct(packed: _*).as("_1"), arrays.as("_2"))
      .as(Encoders.tuple(Encoders.row(rowSchema), arrayEncoder))

    val made = outputs.zipWithIndex.map { case ((_, field), index) => field.copy(name = s"o$index") }
    val settings = Settings.of(df.sparkSession)
    val task = new ScoringTask(
      spec(model, tensors, outputs.map(_._1), settings),
      settings,
      inputs.map(_.reader),
      made.map(field => Cell(field.dataType, model.trained.output))
    )
    val scored = run(rows, task, StructType(rowSchema.fields ++ made))

    val back = fields.zip(carried).zip(places).map { case ((field, how), place) =>
      how.unpack(col(place)).as(field.name, field.metadata)
    }
    scored.select(back ++ outputs.zip(made).map { case ((_, field), from) =>
      col(from.name).as(field.name)
    }: _*)
  }

  private def run(rows: Dataset[(Row, Any)], task: ScoringTask, schema: StructType): DataFrame =
    rows.mapPartitions(task)(Encoders.row(schema))

  /** How an input gets to its tensor: from a vector in the row, or as an array beside it. */
  private final case class Input(reader: InputReader, array: Option[(Column, Encoder[_])])

  private def input(df: DataFrame, tensor: TensorColumns): Input = {
    val schema = df.schema
    def at(name: String) = s"c${schema.fieldIndex(name)}"
    val dtype = schema(tensor.columns.head).dataType
    if (Columns.isVector(dtype) && tensor.dtype.startsWith("float"))
      Input(new VectorReader(tensor, schema.fieldIndex(tensor.columns.head)), None)
    else {
      val expressions = Expressions(schema, tensor, Role.Input, name => col(at(name)))
      // Nulls are refused by the expression; Spark is to know that there are none, and copies whole arrays then.
      val values = dtype match {
        case _: ArrayType | BinaryType          => expressions.head
        case vector if Columns.isVector(vector) => expressions.head
        case _ => array(expressions.map(coalesce(_, lit(0).cast(Expressions.sqlType(tensor.dtype)))): _*)
      }
      val holdsNulls = dtype match {
        case ArrayType(_, containsNull) => containsNull
        case _                          => false
      }
      Input(new ArrayReader(tensor, holdsNulls), Some(values -> encoder(df, tensor.dtype)))
    }
  }

  private def encoder(df: DataFrame, dtype: String): Encoder[_] = {
    val spark = df.sparkSession
    dtype match {
      case "float32" => spark.implicits.newFloatArrayEncoder
      case "float64" => spark.implicits.newDoubleArrayEncoder
      case "int64"   => spark.implicits.newLongArrayEncoder
      case "bool"    => spark.implicits.newBooleanArrayEncoder
      case "uint8"   => Encoders.BINARY
    }
  }

  /** Columns as pairs of pairs, since tuples of encoders end at five. */
  private def nested(columns: List[(Column, Encoder[_])]): (Column, Encoder[Any]) = columns match {
    case Nil                      => (lit(true), any(Encoders.scalaBoolean))
    case (column, encoder) :: Nil => (column, any(encoder))
    case (column, encoder) :: rest =>
      val (others, theirs) = nested(rest)
      (struct(column.as("_1"), others.as("_2")), any(Encoders.tuple(any(encoder), theirs)))
  }

  private def any(encoder: Encoder[_]): Encoder[Any] = encoder.asInstanceOf[Encoder[Any]]

  private def spec(
      model: TorchModel,
      tensors: Seq[TensorColumns],
      wanted: Seq[String],
      settings: Settings
  ): ScorerSpec = {
    val trained = model.trained
    val form = ProgramForms.chosen(trained.programs.keys).get
    new ScorerSpec(
      form = form,
      program = trained.programs(form),
      weights = Some(trained.weights),
      inputs = tensors.map(tensor =>
        TensorRows(Some(tensor.name), tensor.dtype, tensor.shape.getOrElse(Nil).map(_.toLong))
      ),
      output = trained.output.tensors.map(tensor =>
        TensorRows(tensor.name, tensor.dtype, tensor.shape.map(_.toLong))
      ),
      batchSize = model.getInferenceBatchSize,
      classes = model.classes,
      fields = if (model.classes.isDefined) wanted.map(_.stripSuffix("Col")) else Nil,
      store = settings.storeOptions
    )
  }
}
