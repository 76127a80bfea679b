package flambeau.internal.model

/** The forms that programs come in, and the names that their files have in a saved model. */
private[flambeau] object ProgramForms {
  val Scripted = "scripted"
  val Exported = "exported"

  /** The exported graph in training mode, over the same weights. */
  val ExportedTrain = "exportedTrain"

  val fileNames: Map[String, String] =
    Map(Scripted -> "program.pt", Exported -> "program.pt2", ExportedTrain -> "program-train.pt2")

  /** The form to compute with, of those that are there. A scripted program is the faster to load. */
  def chosen(forms: Iterable[String]): Option[String] = Seq(Scripted, Exported).find(forms.toSet)
}
