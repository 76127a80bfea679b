package flambeau

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.internal.util.{Json, Redacted}

/** Where a model comes from; none stands for what there was not, and for what its writer did not know.
  *
  * @param runId
  *   the name of its run
  * @param rowsSha256
  *   with `runId`, a SHA-256 of the rows: of all bytes of the files that were written for the fit, and of rows that were read in
  *   place of the sizes and ends of their files. Two runs have the same where these are
  * @param initialWeights
  *   the file of `initialModel` that training started from
  * @param initialWeightsSha256
  *   that file's SHA-256, which its model's metadata have too
  * @param initialState
  *   the checkpoint of that param
  * @param checkpoint
  *   the last of those that `keepCheckpoints` left, which another fit's `initialState` takes
  */
final case class Lineage private[flambeau] (
    runId: Option[String] = None,
    rowsSha256: Option[String] = None,
    initialWeights: Option[String] = None,
    initialWeightsSha256: Option[String] = None,
    initialState: Option[String] = None,
    checkpoint: Option[String] = None
) {

  /** What goes into a saved model, which others read. */
  private[flambeau] def json: ObjectNode =
    Json
      .obj()
      .put("runId", runId.orNull)
      .put("rowsSha256", rowsSha256.orNull)
      .put("initialWeights", initialWeights.map(Redacted(_)).orNull)
      .put("initialWeightsSha256", initialWeightsSha256.orNull)
      .put("initialState", initialState.map(Redacted(_)).orNull)
      .put("checkpoint", checkpoint.map(Redacted(_)).orNull)
}

private[flambeau] object Lineage {

  /** That which a model's metadata have, as far as they do. */
  def of(json: JsonNode): Lineage = {
    def text(name: String): Option[String] = Option(json.path(name).textValue)
    Lineage(
      text("runId"),
      text("rowsSha256"),
      text("initialWeights"),
      text("initialWeightsSha256"),
      text("initialState"),
      text("checkpoint")
    )
  }
}
