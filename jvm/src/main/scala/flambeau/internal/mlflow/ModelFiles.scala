package flambeau.internal.mlflow

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path}
import java.time.{LocalDateTime, ZoneOffset}
import java.time.format.DateTimeFormatter
import java.util.UUID

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.{Build, CheckedParams, TensorColumns}
import flambeau.internal.model.Trained
import flambeau.internal.saving.ModelWriter
import flambeau.internal.util.Json
import org.apache.spark.SPARK_VERSION
import org.apache.spark.ml.linalg.SQLDataTypes.VectorType
import org.apache.spark.sql.types._

/** A fitted model as a directory that is a model of MLflow's, as `flambeau.mlflow.save_model` in Python writes one, which
  * loads it. Its files of YAML hold JSON, which is YAML too.
  */
private[mlflow] object ModelFiles {
  val Flavor = "flambeau"

  /** Where a directory has the saved model. */
  val Data = "data/model"

  /** The line of Python that Flambeau is tested on, for those who serve the model. */
  private val Python = "3.11"

  private val Time = DateTimeFormatter.ofPattern("yyyy-MM-dd HH:mm:ss.SSSSSS")

  /** Writes a model of a run into a directory, and returns the description that is in its file `MLmodel`.
    *
    * @param example
    *   what [[InputExample]] gave
    */
  def write(
      folder: Path,
      run: String,
      name: String,
      model: CheckedParams,
      trained: Trained,
      outputs: Seq[StructField],
      example: Option[ObjectNode]
  ): ObjectNode = {
    new ModelWriter(model, trained).saveHere(folder.resolve(Data).toUri.toString)
    val described = Json.obj()
      .put("run_id", run)
      .put("artifact_path", name)
      .put("model_uuid", UUID.randomUUID.toString.replace("-", ""))
      .put("utc_time_created", LocalDateTime.now(ZoneOffset.UTC).format(Time))
    described.replace("flavors", flavors(model, trained))
    signature(trained.inputs, outputs).foreach(described.replace("signature", _))
    if (example.isDefined) described.replace("saved_input_example_info", InputExample.info)
    val examples = example.toSeq.flatMap { rows =>
      val served = Json.obj()
      served.replace("dataframe_split", rows)
      Seq(InputExample.File -> Json.text(rows), InputExample.ServingFile -> Json.text(served))
    }
    // Spark's version may be a vendor's.
    val spark = SPARK_VERSION.takeWhile(char => char.isDigit || char == '.').stripSuffix(".")
    val requirements =
      Seq(s"flambeau==${Build.version}", "mlflow", s"torch==${Build.torch}", s"pyspark==$spark")
    val environment = Json.obj().put("python", Python)
    environment.replace("dependencies", Json.strings(Seq("-r requirements.txt")))
    for (
      (file, text) <- Seq(
        "requirements.txt" -> requirements.mkString("", "\n", "\n"),
        "python_env.yaml" -> Json.text(environment),
        "MLmodel" -> Json.text(described)
      ) ++ examples
    ) Files.write(folder.resolve(file), text.getBytes(UTF_8))
    described
  }

  private def flavors(model: CheckedParams, trained: Trained): ObjectNode = {
    val own = Json.obj()
      .put("model_data", Data)
      .put("model_class", model.getClass.getSimpleName)
      .put("flambeau_version", Build.version)
    own.replace("programs", Json.strings(trained.programs.keys.toSeq.sorted))
    val function = Json.obj()
      .put("loader_module", "flambeau.mlflow")
      .put("data", Data)
      .put("python_version", Python)
    function.replace("env", Json.obj().put("virtualenv", "python_env.yaml"))
    val flavors = Json.obj()
    flavors.replace(Flavor, own)
    flavors.replace("python_function", function)
    flavors
  }

  /** What the model takes and gives; none where MLflow has no type for a column that it gives. */
  private def signature(inputs: Seq[TensorColumns], outputs: Seq[StructField]): Option[ObjectNode] = {
    val told = outputs.flatMap(leaves).map(field => typeOf(field.dataType).map(named(field.name, _)))
    if (told.exists(_.isEmpty)) None
    else
      Some(
        Json.obj()
          .put("inputs", Json.text(Json.array(inputs.flatMap(columns))))
          .put("outputs", Json.text(Json.array(told.flatten)))
      )
  }

  /** The columns of an input, of the widest types that it takes. */
  private def columns(tensor: TensorColumns): Seq[ObjectNode] = {
    val number = tensor.dtype match {
      case "int64" => "long"
      case "bool"  => "boolean"
      case "uint8" => "integer"
      case _       => "double"
    }
    val kind =
      if (tensor.columns.length > 1 || tensor.shape.getOrElse(Nil).isEmpty) plain(number)
      else if (tensor.dtype == "uint8") plain("binary")
      else array(plain(number))
    tensor.columns.map(named(_, kind))
  }

  /** A column, or the fields of a struct, by their paths. */
  private def leaves(field: StructField): Seq[StructField] = field.dataType match {
    case StructType(fields) => fields.toSeq.map(inner => inner.copy(name = s"${field.name}.${inner.name}"))
    case _                  => Seq(field)
  }

  /** The type of a column that `flambeau.mlflow` gives in Python for one of Spark's. */
  private def typeOf(kind: DataType): Option[ObjectNode] = kind match {
    case DoubleType | FloatType => Some(plain("double"))
    case LongType               => Some(plain("long"))
    case BooleanType            => Some(plain("boolean"))
    case VectorType             => Some(array(plain("double")))
    case ArrayType(element, _)  => typeOf(element).map(array)
    case _                      => None
  }

  private def plain(kind: String): ObjectNode = Json.obj().put("type", kind)

  private def array(items: JsonNode): ObjectNode = {
    val json = plain("array")
    json.replace("items", items)
    json
  }

  private def named(name: String, kind: ObjectNode): ObjectNode =
    kind.deepCopy().put("name", name).put("required", true)
}
