package flambeau

/** What a learning rate range test found: how the loss went while the rate grew. The three sequences have one entry a step,
  * but for steps without a row that counts, and end early where the loss diverged.
  *
  * @param rates
  *   the learning rate, before `scaleLearningRate` multiplies it
  * @param losses
  *   the mean loss over the batches of all workers, as it was before the step
  * @param smoothed
  *   the running mean of the losses, in which each counts 0.98 of the next one
  */
final case class RangeTest private[flambeau] (
    rates: Seq[Double],
    losses: Seq[Double],
    smoothed: Seq[Double],
    private val suggested: Option[Double]
) {

  /** The rate at which the smoothed loss falls most steeply, as Lightning's `lr_find` has it, the first 10 steps and the last
    * one left out. Throws ParamException for a test of fewer than 13 steps.
    */
  def suggestion: Double = suggested.getOrElse(throw new ParamException(
    s"a test of ${rates.size} steps suggests no rate: take more numSteps, or a smaller maxRate where the loss diverged before"
  ))
}
