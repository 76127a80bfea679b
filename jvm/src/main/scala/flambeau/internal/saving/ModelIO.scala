package flambeau.internal.saving

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.Files

import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.{CheckedParams, GeneralException, Lineage, StoreException, TensorColumns}
import flambeau.jni.StoredFile
import flambeau.internal.model.{Counts, OutputSpec, ProgramForms, Trained}
import flambeau.internal.session.Session
import flambeau.internal.storage.{Directory, SavedFile}
import flambeau.internal.util.Json
import org.apache.spark.ml.util.{MLReader, MLWriter}

/** Writes a fitted model as a plain directory: `metadata/`, `weights.safetensors`, `history.json`, and its program. */
private[flambeau] final class ModelWriter(model: CheckedParams, trained: Trained) extends MLWriter {

  override def save(path: String): Unit = {
    val directory = new Directory(sparkSession, path)
    if (shouldOverwrite && (trained.programs.values.toSeq :+ trained.weights).exists(directory.holds))
      throw new GeneralException(
        s"the model was loaded from ${directory.path} and reads its weights from there; save it to another path"
      )
    super.save(path)
  }

  /** Writes program, weights and history, then the metadata. */
  override protected def saveImpl(path: String): Unit =
    Metadata.write(sparkSession, path, model, written(new Directory(sparkSession, path)))

  /** Writes the same to a new directory of this machine, which no other needs to see. Throws StoreException where executors
    * alone see the model's files.
    */
  def saveHere(path: String): Unit = {
    for (
      file <- trained.programs.values.toSeq :+ trained.weights; local <- StoredFile.localPath(file.uri)
      if !Files.isRegularFile(local)
    ) throw new StoreException(s"the model's file ${file.uri} was removed, or this machine does not see it")
    val directory = new Directory(sparkSession, path)
    val metadata = Metadata.of(sparkSession, model, written(directory))
    directory.write(Metadata.Part, s"${Json.text(metadata)}\n".getBytes(UTF_8))
  }

  /** Writes program, weights and history, and returns what the metadata is to tell of them. */
  private def written(directory: Directory): ObjectNode = {
    val programs = Json.obj()
    val files = Json.obj()
    def tell(name: String, saved: SavedFile): Unit = files.replace(name, saved.json)

    for ((form, file) <- trained.programs.toSeq.sortBy(_._1)) {
      val name = ProgramForms.fileNames(form)
      tell(name, directory.copy(name, file))
      programs.put(form, name)
    }
    tell(FileNames.History, directory.write(FileNames.History, Json.text(trained.history).getBytes(UTF_8)))
    tell(FileNames.Weights, directory.copy(FileNames.Weights, trained.weights))

    val ours = Json.obj()
    ours.replace("programs", programs)
    ours.replace("reasons", Json.of(trained.reasons, "reasons"))
    ours.replace("files", files)
    ours.replace("inputs", Json.array(trained.inputs.map(_.json)))
    ours.replace("output", trained.output.json)
    ours.put("classes", trained.classes)
    ours.put("parameterDtype", if (trained.isWide) "float64" else "float32")
    ours.replace("summary", trained.counts.json)
    ours.replace("judgedBy", trained.judgedBy)
    ours.replace("lineage", trained.lineage.json)
    ours
  }
}

/** Reads a fitted model that Scala or PySpark saved. Its weights and program stay where they are until they are used.
  *
  * @param make
  *   makes a model without params of its own, given the name of its class, where that is one of ours
  */
private[flambeau] final class ModelReader[M <: CheckedParams](
    wanted: Class[M],
    make: String => Option[(String, Trained) => CheckedParams]
) extends MLReader[M] {

  override def load(path: String): M = read(path, Metadata.read(sparkSession, path), identity)

  /** Reads what `saveHere` wrote, from a directory that executors need not see: they get from this process what lies on its
    * machine.
    */
  def loadHere(path: String): M = read(path, Metadata.readHere(sparkSession, path), handedOut)

  private def handedOut(file: StoredFile): StoredFile =
    StoredFile.localPath(file.uri).filter(!Session.isLocal(sparkSession) && Files.isRegularFile(_)).fold(
      file
    ) {
      local => file.copy(content = Some(sparkSession.sparkContext.broadcast(Files.readAllBytes(local))))
    }

  private def read(path: String, metadata: Metadata, place: StoredFile => StoredFile): M = {
    val made = make(metadata.className).getOrElse(refuse(metadata))
    metadata.checkVersion()
    val directory = new Directory(sparkSession, metadata.path)
    val ours = metadata.ours
    val programs = metadata.programs
    if (ProgramForms.chosen(programs.keys).isEmpty)
      throw new GeneralException(
        s"$path holds its program as a pickle, which only Python reads${Metadata.bracketed(metadata.reasons)}: " +
          "score it in PySpark, or change the module so that torch.jit.script or torch.export takes it and save the model again"
      )
    val stored = programs.map { case (form, name) =>
      form -> place(directory.reference(name, metadata.file(name)))
    }
    val refused =
      stored.flatMap { case (form, file) => Trust.refusal(sparkSession, form, file).map(form -> _) }
    val readable = stored -- refused.keys
    if (ProgramForms.chosen(readable.keys).isEmpty)
      throw new GeneralException(
        s"$path holds no program that may be read${Metadata.bracketed(refused)}: score it where the program may be run"
      )
    val trained = Trained(
      programs = readable,
      reasons = metadata.reasons,
      weights = place(directory.reference(FileNames.Weights, metadata.file(FileNames.Weights))),
      inputs = Json.items(ours.get("inputs")).map(TensorColumns.of),
      output = OutputSpec.of(ours.get("output")),
      classes = ours.path("classes").asText,
      isWide = ours.path("parameterDtype").asText == "float64",
      judgedBy = Option(ours.get("judgedBy")).getOrElse(Json.obj()),
      history = Json.parse(
        new String(directory.read(FileNames.History, Some(metadata.file(FileNames.History))), UTF_8),
        FileNames.History
      ),
      counts = Counts.of(ours.path("summary")),
      lineage = Lineage.of(ours.path("lineage"))
    )
    val model = made(metadata.uid, trained)
    metadata.setParams(model)
    if (!wanted.isInstance(model)) refuse(metadata)
    wanted.cast(model)
  }

  private def refuse(metadata: Metadata): Nothing =
    throw new GeneralException(
      s"${metadata.path} holds a ${metadata.className}, not a ${wanted.getSimpleName}"
    )
}
