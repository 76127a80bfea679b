package flambeau.internal.rows

import flambeau.HasTrainingParams

/** How a fit reads its rows.
  *
  * @param params
  *   name the columns
  * @param labelDtype
  *   the type that labels are read as; none follows their columns
  * @param isWide
  *   whether the module computes in float64: labels and the weight are float64 where they would be float32
  * @param arguments
  *   those of the module's forward, in their order
  */
private[flambeau] final case class Reading(
    params: HasTrainingParams,
    labelDtype: Option[String],
    isWide: Boolean,
    arguments: Seq[String]
)
