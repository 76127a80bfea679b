package flambeau.examples

import java.nio.charset.StandardCharsets.UTF_8
import java.util.UUID

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileContext, FileSystem, LocalFileSystem, Options, Path}
import org.apache.hadoop.io.IOUtils

/** The pointer to the model in use: a file `CURRENT` beside the models, which holds the name of one of them.
  *
  * The directory of the current model is never written, and the pointer is replaced by one rename. So a reader finds the old model or
  * the new one, whole, whenever it looks, and a job that dies on the way changes nothing.
  */
class CurrentModel(models: Path, configuration: Configuration) {
  private val files: FileSystem = models.getFileSystem(configuration) match {
    // Without the checksum files that Hadoop writes beside local files: file and checksum would be two renames.
    case local: LocalFileSystem => local.getRawFileSystem
    case other                  => other
  }
  private val pointer = new Path(models, "CURRENT")

  /** The current model's directory; none where no model was promoted yet. */
  def read(): Option[Path] =
    if (!files.exists(pointer)) None
    else {
      val stream = files.open(pointer)
      try Some(new Path(models, new String(IOUtils.readFullyToByteArray(stream), UTF_8).trim))
      finally stream.close()
    }

  /** Whether a directory holds a model that was saved to its end: its metadata are written last. */
  def isSaved(model: Path): Boolean = files.exists(marker(model))

  /** Removes a model that is not the current one. The marker goes first: what a job that dies on the way leaves was not saved to
    * its end.
    */
  def remove(model: Path): Unit = {
    files.delete(marker(model), false)
    files.delete(model, true)
  }

  /** Makes `model`, a directory beside the pointer that is written to its end, the current one.
    *
    * The rename replaces the pointer in one operation: rename(2) on a local file system, and one entry of the name
    * node's log on HDFS. On Databricks (`dbfs`, volumes too) the pointer is written over: nothing there renames onto a
    * file, and what an object store keeps is the old bytes or the new ones. Hadoop's other file systems are refused.
    */
  def write(model: Path): Unit = files.getUri.getScheme match {
    case "file" =>
      val written = writtenBeside(model)
      if (!files.rename(written, pointer)) throw new java.io.IOException(s"$pointer was not replaced")
    case "hdfs" =>
      val context = FileContext.getFileContext(files.getUri, configuration)
      context.rename(writtenBeside(model), pointer, Options.Rename.OVERWRITE)
    case "dbfs" => write(model, pointer)
    case other =>
      throw new IllegalArgumentException(s"$models: no atomic rename on $other; use a path on HDFS")
  }

  private def marker(model: Path) = new Path(model, "metadata/_SUCCESS")

  private def writtenBeside(model: Path): Path = {
    val written = new Path(models, s".CURRENT-${UUID.randomUUID}")
    write(model, written)
    written
  }

  private def write(model: Path, file: Path): Unit = {
    val stream = files.create(file, true)
    try stream.write(model.getName.getBytes(UTF_8))
    finally stream.close()
  }
}
