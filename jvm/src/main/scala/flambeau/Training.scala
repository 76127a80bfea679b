package flambeau

import java.util.concurrent.atomic.AtomicBoolean

/** Where a training is, as a [[TrainingListener]] is told. It does not change: each call brings another one.
  *
  * @param epoch
  *   the epoch that it is about, counted from 0
  * @param step
  *   optimizer steps taken since the training began, those before a restart included
  * @param epochs
  *   epochs in all, where nothing stops the training before
  * @param stepsPerEpoch
  *   optimizer steps in an epoch
  * @param metrics
  *   what is known of the epoch, by the names that a model's `history` has: `loss`, the mean so far while the epoch runs, and
  *   from its end on each metric too, and with validation rows `val_loss` and `val_<metric>`. NaN stands where a value is no
  *   finite number. Empty when an epoch begins
  * @param learningRate
  *   that of the last step that was told; none before
  * @param gradientNorm
  *   with `logGradientNorm` or `gradientClipNorm`, the 2-norm of all gradients of the last step that was told, and at the end of an
  *   epoch what the `history` has as `gradient_norm`, the mean over its steps; none before
  * @param rowsPerSecond
  *   training rows per second over all workers: in the last second or more while an epoch runs, and over the epoch at its end;
  *   none before
  * @param checkpoint
  *   the directory of the newest checkpoint that the training has written; none before
  * @param stepLoss
  *   while an epoch runs, the loss of its last step; none where that is no finite number
  */
final class Training private[flambeau] (
    val epoch: Long,
    val step: Long,
    val epochs: Long,
    val stepsPerEpoch: Long,
    val metrics: Map[String, Double],
    val learningRate: Option[Double],
    val gradientNorm: Option[Double],
    val rowsPerSecond: Option[Double],
    val checkpoint: Option[String],
    private[flambeau] val stepLoss: Option[Double],
    isStopping: AtomicBoolean
) {

  /** Asks for the end of the training, from any thread, and returns at once.
    *
    * Within a few seconds all workers stop after the same step. The epoch under way is evaluated and recorded with the steps
    * that it had, and the fit returns its model, as when `monitor` stops it.
    */
  def stop(): Unit = isStopping.set(true)

  private[flambeau] def copy(
      epoch: Long = epoch,
      step: Long = step,
      epochs: Long = epochs,
      stepsPerEpoch: Long = stepsPerEpoch,
      metrics: Map[String, Double] = metrics,
      learningRate: Option[Double] = learningRate,
      gradientNorm: Option[Double] = gradientNorm,
      rowsPerSecond: Option[Double] = rowsPerSecond,
      checkpoint: Option[String] = checkpoint,
      stepLoss: Option[Double] = stepLoss
  ): Training = new Training(
    epoch,
    step,
    epochs,
    stepsPerEpoch,
    metrics,
    learningRate,
    gradientNorm,
    rowsPerSecond,
    checkpoint,
    stepLoss,
    isStopping
  )
}

private[flambeau] object Training {

  /** A training of which nothing is known yet, and what says that a listener has asked for its end. */
  def begin(isStopping: AtomicBoolean): Training =
    new Training(0, 0, 0, 0, Map.empty, None, None, None, None, None, isStopping)
}
