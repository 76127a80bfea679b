package flambeau.internal.saving

import java.nio.charset.StandardCharsets.UTF_8

import com.fasterxml.jackson.databind.JsonNode
import flambeau.ParamException
import flambeau.jni.StoredFile
import flambeau.internal.model.ProgramForms
import flambeau.internal.storage.{Directory, SavedFile}
import flambeau.internal.util.Json
import org.apache.spark.sql.SparkSession

/** The program that a fit trains: what `setModel` names.
  *
  * @param form
  *   the form to train, `scripted` or `exported`
  * @param files
  *   the files of all forms that there are: `scripted`, `exported`, `exportedTrain`
  * @param weights
  *   the weights to start from; none takes those in the program's own file
  */
private[flambeau] final case class ProgramSource(
    form: String,
    files: Map[String, StoredFile],
    weights: Option[StoredFile]
) {

  /** Every file of it. */
  def stored: Seq[StoredFile] = files.values.toSeq ++ weights
}

private[flambeau] object ProgramSource {
  private val Index = "program.json"

  /** The program at a path: a TorchScript archive, an archive of `torch.export` (its name ends in .pt2), a directory of
    * `flambeau.save_program`, or a saved model or estimator.
    *
    * Throws ParamException where there is nothing of the kind.
    */
  def open(spark: SparkSession, path: String): ProgramSource = {
    val directory = new Directory(spark, path)
    if (!directory.exists())
      throw new ParamException(
        s"model: there is nothing at $path; give the path of a program or of a saved model"
      )
    if (directory.isFile) {
      val form = if (path.endsWith(".pt2")) ProgramForms.Exported else ProgramForms.Scripted
      ProgramSource(form, Map(form -> directory.asFile), None)
    } else if (directory.exists(Index)) {
      val index = Json.parse(new String(directory.read(Index), UTF_8), s"$path/$Index")
      of(directory, index)
    } else if (directory.exists("metadata")) of(directory, Metadata.read(spark, path).ours)
    else
      throw new ParamException(
        s"model: $path is neither a program nor a directory of one; save a module with torch.jit.save, " +
          "flambeau.save_program, or as a fitted model"
      )
  }

  /** The forms and files that a directory's index tells of. */
  private def of(directory: Directory, index: JsonNode): ProgramSource = {
    val files = Json.fields(index.get("files")).map { case (name, entry) =>
      name -> SavedFile.of(entry)
    }.toMap
    val forms = Json.fields(index.get("programs")).map { case (form, name) => form -> name.asText }
    val known = forms.filter { case (form, name) =>
      ProgramForms.fileNames.contains(form) && files.contains(name)
    }.toMap
    val form = ProgramForms.chosen(known.keys).getOrElse {
      throw new ParamException(
        s"model: ${directory.path} holds no program that libtorch reads" +
          s"${Metadata.bracketed(Metadata.reasonsOf(index))}: " +
          "change the module so that torch.jit.script or torch.export takes it"
      )
    }
    ProgramSource(
      form,
      known.map { case (known, name) => known -> directory.reference(name, files(name)) },
      files.get(FileNames.Weights).map(directory.reference(FileNames.Weights, _))
    )
  }
}
