package flambeau

/** Is told on the driver of a training while it runs, and may stop it.
  *
  * {{{
  * estimator.addListener(new TrainingListener {
  *   override def onEpochEnd(training: Training): Unit =
  *     if (training.metrics("val_loss") < 0.1) training.stop()
  * })
  * }}}
  *
  * A fit calls its listeners in their order, one call at a time and not on the thread that trains: a slow one delays later
  * calls and the fit's end, but no step. Calls come up to two seconds after what they tell of. Where the driver does not see
  * the work directory they come when the workers have ended, which is told in a warning, and `stop` does nothing.
  *
  * What a listener throws ends the fit, which throws it too; nothing more is called then. What it throws once the training has
  * ended well loses no model: the fit throws a [[ListenerException]] that has it. An exception that is suppressed in what was
  * thrown names the listener and the method.
  *
  * Where a worker was lost, training goes on from a checkpoint, and epochs that are trained again are told again. Fits
  * that run at once, as in a `CrossValidator`, call the same listener from several threads.
  */
trait TrainingListener {

  /** Training begins, or goes on from what a run of the same `runId` left. Once in a fit. */
  def onTrainBegin(training: Training): Unit = ()

  /** An epoch begins. */
  def onEpochBegin(training: Training): Unit = ()

  /** An epoch is under way. About once a second. */
  def onProgress(training: Training): Unit = ()

  /** An epoch was evaluated on the validation rows. Not called without any. */
  def onValidationEnd(training: Training): Unit = ()

  /** An epoch and its evaluation have ended. */
  def onEpochEnd(training: Training): Unit = ()

  /** `training.checkpoint` has been written. */
  def onCheckpoint(training: Training): Unit = ()

  /** Training has ended well, early or not, and its weights are written. Once in a fit, and never in one that fails. */
  def onTrainEnd(training: Training): Unit = ()

  /** After how many seconds workers are to tell again what they use of their machines; none for never. */
  private[flambeau] def usageSeconds: Option[Double] = None

  /** A worker has told what it uses, by the names of MLflow's system metrics. */
  private[flambeau] def onUsage(rank: Int, values: Seq[(String, Double)]): Unit = ()
}
