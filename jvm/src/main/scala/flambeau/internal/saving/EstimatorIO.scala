package flambeau.internal.saving

import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.{GeneralException, HasObjects, HasTrainingParams, Loss, Optimizer}
import flambeau.internal.model.ProgramForms
import flambeau.internal.storage.Directory
import flambeau.internal.util.Json
import org.apache.spark.ml.util.{MLReader, MLWriter}
import org.slf4j.LoggerFactory

/** Writes an estimator: its params, its loss, optimizer and metrics as JSON, and its program's files beside the metadata. Its
  * listeners are left out, with a warning.
  */
private[flambeau] final class EstimatorWriter(estimator: HasTrainingParams with HasObjects) extends MLWriter {

  override def save(path: String): Unit = {
    val directory = new Directory(sparkSession, path)
    val own = program.toSeq.flatMap(_.stored) ++ script.map(name => new Directory(sparkSession, name).asFile)
    if (shouldOverwrite && own.exists(directory.holds))
      throw new GeneralException(
        s"the estimator's program lies in ${directory.path}; save it to another path"
      )
    super.save(path)
  }

  override protected def saveImpl(path: String): Unit = {
    val directory = new Directory(sparkSession, path)
    val files = Json.obj()
    val programs = Json.obj()
    for (source <- program; (form, file) <- source.files) {
      val name = ProgramForms.fileNames(form)
      files.replace(name, directory.copy(name, file).json)
      programs.put(form, name)
    }
    for (weights <- program.flatMap(_.weights))
      files.replace(FileNames.Weights, directory.copy(FileNames.Weights, weights).json)
    for (name <- script) {
      val file = new Directory(sparkSession, name).asFile
      files.replace(FileNames.LossScript, directory.copy(FileNames.LossScript, file).json)
    }
    val ours = Json.obj()
    ours.replace("names", names)
    ours.replace("programs", programs)
    ours.replace("files", files)
    Metadata.write(sparkSession, path, estimator, ours, skip = HasObjects.names)
    if (estimator.getListeners.nonEmpty)
      EstimatorWriter.log.warn(
        s"the listeners of the estimator that was saved to $path are not saved with it"
      )
  }

  private lazy val program: Option[ProgramSource] =
    estimator.get(estimator.model).map(ProgramSource.open(sparkSession, _))

  /** The path of a loss that is a script of the user's. */
  private def script: Option[String] = estimator.get(estimator.loss).collect { case Loss.Scripted(path) =>
    path
  }

  /** Loss, optimizer and metrics, those that are set; a script by the name of its file in the directory. */
  private def names: ObjectNode = {
    val names = Json.obj()
    estimator.get(estimator.loss).foreach {
      case Loss.Scripted(_) => names.replace("loss", Loss.script(FileNames.LossScript).json)
      case loss             => names.replace("loss", loss.short)
    }
    estimator.get(estimator.optimizer).foreach(optimizer => names.replace("optimizer", optimizer.short))
    estimator.get(estimator.metrics).foreach(metrics => names.replace("metrics", Json.strings(metrics)))
    names
  }
}

private object EstimatorWriter {
  private val log = LoggerFactory.getLogger("flambeau")
}

/** Reads an estimator that Scala saved, or PySpark where it holds nothing but a program and names. */
private[flambeau] final class EstimatorReader[E <: HasTrainingParams with HasObjects](wanted: Class[E])
    extends MLReader[E] {

  override def load(path: String): E = {
    val metadata = Metadata.read(sparkSession, path)
    val found = EstimatorReader.Names.contains(metadata.className)
    val estimator = if (found) instance(metadata) else refuse(metadata)
    metadata.checkVersion()
    if (metadata.ours.path("files").has(FileNames.Objects))
      throw new GeneralException(
        s"$path holds its module, loss or optimizer as a pickle, which only Python reads: in Python, set model to a " +
          "program that flambeau.save_program wrote, loss, optimizer and metrics to names, and save the estimator again"
      )
    val directory = new Directory(sparkSession, metadata.path)
    val script = Some(ProgramForms.Scripted -> FileNames.LossScript).filter { case (_, name) =>
      metadata.ours.path("files").has(name)
    }
    Trust.check(
      sparkSession,
      path,
      (metadata.programs.toSeq ++ script).map { case (form, name) =>
        form -> directory.reference(name, metadata.file(name))
      }
    )
    metadata.setParams(estimator)
    val names = metadata.ours.path("names")
    Option(names.get("loss")).foreach { json =>
      estimator.set(
        estimator.loss,
        Loss.of(json) match {
          case Loss.Scripted(FileNames.LossScript) => Loss.script(s"${metadata.path}/${FileNames.LossScript}")
          case other                               => other
        }
      )
    }
    Option(names.get("optimizer")).foreach(json => estimator.set(estimator.optimizer, Optimizer.of(json)))
    Option(names.get("metrics")).foreach(json => estimator.set(estimator.metrics, Json.texts(json).toArray))
    if (metadata.programs.nonEmpty) estimator.set(estimator.model, metadata.path)
    estimator
  }

  private def instance(metadata: Metadata): E = {
    val cls = Class.forName(metadata.className, true, wanted.getClassLoader)
    if (!wanted.isAssignableFrom(cls)) refuse(metadata)
    wanted.cast(cls.getConstructor(classOf[String]).newInstance(metadata.uid))
  }

  private def refuse(metadata: Metadata): Nothing =
    throw new GeneralException(
      s"${metadata.path} holds a ${metadata.className}, not a ${wanted.getSimpleName}"
    )
}

private object EstimatorReader {
  private val Names = Seq("flambeau.TorchEstimator", "flambeau.TorchRegressor", "flambeau.TorchClassifier")
}
