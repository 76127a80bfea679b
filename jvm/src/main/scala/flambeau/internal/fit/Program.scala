package flambeau.internal.fit

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.{Loss, Optimizer, ParamException}
import flambeau.jni.StoredFile
import flambeau.internal.model.ProgramForms
import flambeau.internal.saving.{FileNames, Metadata, ProgramSource, Trust}
import flambeau.internal.storage.Directory
import flambeau.internal.util.Json
import org.apache.spark.sql.SparkSession

/** What a fit trains: a program's files, the weights to start from, and the loss, the optimizer and the metrics.
  *
  * @param form
  *   `scripted` or `exported`
  * @param eval
  *   the program, or its graph in evaluation mode
  * @param train
  *   the exported program's graph in training mode; none where one graph serves both modes
  * @param weights
  *   none takes those in the program's own file
  * @param lossScript
  *   the file of a loss that is a script
  */
private[flambeau] final case class Program(
    form: String,
    eval: StoredFile,
    train: Option[StoredFile],
    weights: Option[StoredFile],
    loss: Loss,
    lossScript: Option[StoredFile],
    optimizer: Optimizer,
    metrics: Seq[String]
) {

  /** As the training job's `program` has it. */
  def json: ObjectNode = {
    val json = Json.obj().put("form", form).put("eval", eval.uri).put("train", train.map(_.uri).orNull)
    json.replace(
      "weights",
      Json.of(
        weights.map(file => Map("uri" -> file.uri, "size" -> file.size, "sha256" -> file.sha256)),
        "weights"
      )
    )
    json.replace("loss", lossScript.fold(loss.json)(file => Json.obj().put("script", file.uri)))
    json.replace("optimizer", optimizer.json)
    json.replace("metrics", Json.strings(metrics))
    json
  }

  /** The files that are run, by their part in the job's `program`. Weights are checked by who reads them. */
  def code: Map[String, StoredFile] =
    Map("eval" -> eval) ++ train.map("train" -> _) ++ lossScript.map("loss" -> _)

  /** The same with every file where `place` puts it, given the name that it may have in a directory of this program's. */
  def placed(place: (String, StoredFile) => StoredFile): Program = copy(
    eval = place("eval", eval),
    train = train.map(place("train", _)),
    weights = weights.map(place("weights", _)),
    lossScript = lossScript.map(place("loss", _))
  )
}

private[flambeau] object Program {

  /** What the estimator's params name. Throws ParamException for what is missing or no program. */
  def of(estimator: Trainable, spark: SparkSession): Program = {
    val initial = estimator.valueOf(estimator.initialModel)
    val path = estimator.valueOf(estimator.model).orElse(initial).getOrElse {
      throw new ParamException(
        "model must be set: the path of a TorchScript archive, of an archive of torch.export, of a directory that " +
          "flambeau.save_program wrote, or of a saved model"
      )
    }
    val loss = estimator.valueOf(estimator.loss).getOrElse {
      throw new ParamException("loss must be set: a name such as 'mse', or a script by setLossScript")
    }
    val source = ProgramSource.open(spark, path)
    // What is given as model is the user's own. A saved model's program is its author's.
    if (estimator.valueOf(estimator.model).isEmpty) Trust.check(spark, path, source.files)
    Program(
      source.form,
      source.files(source.form),
      if (source.form == ProgramForms.Exported) source.files.get(ProgramForms.ExportedTrain) else None,
      initial.map(weightsAt(spark, _)).orElse(source.weights),
      loss,
      Some(loss).collect { case Loss.Scripted(script) => new Directory(spark, script).asFile },
      estimator.getOptimizer,
      estimator.getMetrics.toSeq
    )
  }

  /** The weights of a saved model, or a safetensors file. */
  private def weightsAt(spark: SparkSession, path: String): StoredFile = {
    val directory = new Directory(spark, path)
    if (directory.isFile) directory.asFile
    else directory.reference(FileNames.Weights, Metadata.read(spark, path).file(FileNames.Weights))
  }

  /** A model's files by form, from a training result's `weights`. */
  def written(weights: JsonNode): Map[String, StoredFile] = {
    val files =
      Json.items(weights.get("files")).map(file => file.get("name").asText -> StoredFile.of(file)).toMap
    ProgramForms.fileNames.collect { case (form, name) if files.contains(name) => form -> files(name) }
  }
}
