package flambeau

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.internal.util.Json

/** What held a training up most.
  *
  * @param part
  *   `data`, `model` (forward and backward), `reduce` (averaging gradients), `optimizer` or `slow_rank`
  * @param share
  *   its share of the seconds that a worker spent in steps, from 0 to 1
  * @param rank
  *   the rank that the others waited for, none where it was not that
  * @param advice
  *   a sentence that says so, and what to change
  */
final case class Bottleneck private[flambeau] (
    part: String,
    share: Double,
    rank: Option[Int],
    advice: String
) {

  private[flambeau] def json: ObjectNode = {
    val json = Json.obj().put("part", part).put("share", share).put("advice", advice)
    json.replace("rank", Json.of(rank, "rank"))
    json
  }
}

private[flambeau] object Bottleneck {

  /** What a training's result or a saved model says of it, if it says anything. */
  def of(json: JsonNode): Option[Bottleneck] = Option(json).filter(_.isObject).map { found =>
    val rank = Option(found.get("rank")).filterNot(_.isNull).map(_.asInt)
    Bottleneck(found.path("part").asText, found.path("share").asDouble, rank, found.path("advice").asText)
  }
}
