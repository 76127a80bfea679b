package flambeau.internal.saving

import flambeau.{GeneralException, ParamException}
import flambeau.jni.{NativeLibrary, StoredFile}
import flambeau.internal.model.ProgramForms
import flambeau.internal.session.Settings
import org.apache.spark.sql.SparkSession

/** Which saved programs a session reads. A program is code of whoever wrote it; with `spark.flambeau.allowPickle` false only those
  * are read that can do nothing but compute, and with `spark.flambeau.allowScripts` false no TorchScript.
  */
private[flambeau] object Trust {
  private val AllowPickle = "spark.flambeau.allowPickle"
  private val AllowScripts = "spark.flambeau.allowScripts"

  /** Why the session does not read a program of that form, or a loss that is a script; none where it does. Nothing of it is run. */
  def refusal(spark: SparkSession, form: String, file: => StoredFile): Option[String] = {
    val settings = Settings.of(spark)
    def isOff(name: String): Boolean = settings.get(name).exists(_.trim.equalsIgnoreCase("false"))
    if (form == ProgramForms.Scripted && isOff(AllowScripts)) Some(s"$AllowScripts is false")
    else if (!isOff(AllowPickle)) None
    else {
      val kind = if (form == ProgramForms.ExportedTrain) ProgramForms.Exported else form
      try {
        val hadoop = spark.sparkContext.hadoopConfiguration
        val local = file.local(NativeLibrary.store(settings.get), settings.storeJson, hadoop)
        NativeLibrary.torch(settings.get).checkPure(kind, local.toString)
        None
      } catch { case error: ParamException => Some(s"$AllowPickle is false, and ${error.getMessage}") }
    }
  }

  /** Throws FlambeauException where the session does not read one of the programs. */
  def check(spark: SparkSession, path: String, programs: Iterable[(String, StoredFile)]): Unit =
    for ((form, file) <- programs; why <- refusal(spark, form, file))
      throw new GeneralException(s"$path: its $form program may not be read: $why")
}
