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
    private[flambeau] val weights: StoredFile,
    private[flambeau] val history: JsonNode
) extends Serializable

private[flambeau] object Checkpoint {

  /** A checkpoint as the supervisor tells it. */
  def of(json: JsonNode): Checkpoint = new Checkpoint(
    json.get("epoch").asLong,
    json.get("step").asLong,
    json.get("uri").asText,
    StoredFile.of(json.get("weights")),
    json.get("history")
  )
}
