package flambeau.internal.mlflow

import java.util.Base64

import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.TensorColumns
import flambeau.internal.rows.{Expressions, Role}
import flambeau.internal.session.Session
import flambeau.internal.util.Json
import org.apache.spark.sql.DataFrame

/** A few rows of what a model takes, as MLflow keeps them with it: a DataFrame of pandas, in the orient `split`. */
private[flambeau] object InputExample {

  /** The rows by themselves. */
  val File = "input_example.json"

  /** The body of a request that has a server score them. */
  val ServingFile = "serving_input_example.json"

  private val NumRows = 5

  /** What a model's description tells of the files. */
  def info: ObjectNode = Json.obj()
    .put("artifact_path", File)
    .put("pandas_orient", "split")
    .put("serving_input_path", ServingFile)
    .put("type", "dataframe")

  /** The first rows without nulls and NaN, in the types that the model's signature has: vectors and nested arrays as flat
    * arrays, bytes in Base64. Runs a small Spark job, which an interrupt of the thread cancels.
    */
  def of(frame: DataFrame, inputs: Seq[TensorColumns]): ObjectNode = {
    val exact =
      inputs.map(tensor => if (tensor.dtype == "float32") tensor.copy(dtype = "float64") else tensor)
    val columns = exact.flatMap(Expressions(frame.schema, _, Role.Input))
    val first = Expressions.validRows(frame, inputs, "skip").select(columns: _*).limit(NumRows)
    val rows = Session.interruptible(frame.sparkSession.sparkContext)(first.collect())
    val example = Json.obj()
    example.replace("columns", Json.strings(first.columns))
    example.replace("data", Json.of(rows.map(_.toSeq.map(plain)), "the example"))
    example
  }

  private def plain(value: Any): Any = value match {
    case bytes: Array[Byte] => Base64.getEncoder.encodeToString(bytes)
    case other              => other
  }
}
