package flambeau

import com.fasterxml.jackson.databind.JsonNode
import flambeau.jni.StoredFile

/** Where a training was at one moment, as `keepCheckpoints` leaves it in the work directory.
  *
  * @param epoch
  *   the epoch, counted from 0, that training goes on with from here
  * @param step
  *   the number of optimizer steps before it
  * @param uri
  *   its directory; `weights/weights.safetensors` in it are the weights
  */
final class Checkpoint private[flambeau] (
    val epoch: Long,
    val step: Long,
    val uri: String,
    weights: StoredFile,
    history: JsonNode
) extends Serializable {

  /** What is held of a training with this checkpoint's weights and the history up to it. */
  private[flambeau] def of(trained: Trained): Trained = trained.copy(
    weights = weights,
    history = history,
    counts = trained.counts.copy(numSteps = step, trainingSeconds = None),
    checkpoints = Nil
  )
}

private[flambeau] object Checkpoint {

  /** A checkpoint as the supervisor tells it. */
  def of(json: JsonNode): Checkpoint = new Checkpoint(
    json.get("epoch").asLong,
    json.get("step").asLong,
    json.get("uri").asText,
    Program.stored(json.get("weights")),
    json.get("history")
  )
}
