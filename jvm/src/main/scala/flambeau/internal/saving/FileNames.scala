package flambeau.internal.saving

/** Names of files in saved directories. */
private[flambeau] object FileNames {
  val Weights = "weights.safetensors"
  val History = "history.json"
  val Objects = "objects.pkl"
  val LossScript = "loss.pt"
}
