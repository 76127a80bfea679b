package flambeau.internal.fit

import java.nio.file.{Files, Path}

import flambeau.jni.{NativeLibrary, StoredFile}
import flambeau.internal.session.{Session, Settings}
import flambeau.internal.storage.Site
import org.apache.spark.sql.SparkSession

/** Where a program's files are for the driver, and where the workers find them. */
private[flambeau] object ProgramFiles {

  /** The file as the native store of this process takes it; one that only Hadoop's file systems have is fetched. */
  def onDriver(spark: SparkSession, file: StoredFile): StoredFile =
    (if (file.isHadoops) Some(fetched(spark, file)) else StoredFile.localPath(file.uri)).fold(file)(at(
      file,
      _
    ))

  /** The file where all workers find it: itself, or on a cluster a copy in the work directory of what only this machine
    * has.
    *
    * @param id
    *   the directory of the copies, under `programs`
    * @param name
    *   the copy's name
    */
  def place(site: Site, id: String)(name: String, file: StoredFile): StoredFile =
    here(site.spark, file) match {
      case None => if (Session.isLocal(site.spark)) onDriver(site.spark, file) else file
      case Some(local) =>
        val work = site.work
        val target = work.path("programs", id, name)
        if (site.isVisible)
          NativeLibrary.store(work.settings.get).putFile(work.settings.storeJson, target, local.toString)
        else {
          val bytes = site.spark.sparkContext.broadcast(Files.readAllBytes(local))
          try site.whereSeen(_.write(target, bytes.value))
          finally bytes.destroy()
        }
        file.copy(uri = target)
    }

  /** Whether `place` copies any of the program's files. */
  def isCopied(spark: SparkSession, program: Program): Boolean =
    (Seq(program.eval) ++ program.train ++ program.weights ++ program.lossScript).exists(here(
      spark,
      _
    ).isDefined)

  /** The file's path, where workers may not see it and this machine does. */
  private def here(spark: SparkSession, file: StoredFile): Option[Path] = {
    val isShared = Seq("/Volumes/", "/dbfs/", "dbfs:").exists(file.uri.startsWith)
    if (Session.isLocal(spark) || isShared) None
    else if (file.isHadoops) Some(fetched(spark, file))
    else StoredFile.localPath(file.uri).filter(Files.isRegularFile(_))
  }

  private def fetched(spark: SparkSession, file: StoredFile): Path = {
    val settings = Settings.of(spark)
    file.local(NativeLibrary.store(settings.get), settings.storeJson, spark.sparkContext.hadoopConfiguration)
  }

  private def at(file: StoredFile, path: Path): StoredFile = file.copy(uri = path.toString)
}
