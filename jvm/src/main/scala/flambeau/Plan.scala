package flambeau

import java.util.Locale

/** A short training, of which nothing was kept.
  *
  * @param numWorkers
  *   the number of workers
  * @param numThreads
  *   torch's threads in each worker, none for an even share of the machine's cores
  * @param batchSize
  *   the rows of a worker's batch
  * @param rowsPerSecond
  *   the training rows a second of all workers, none where it failed, for want of memory or of slots
  * @param error
  *   what the workers said of that
  */
final case class Trial private[flambeau] (
    numWorkers: Int,
    numThreads: Option[Int],
    batchSize: Int,
    rowsPerSecond: Option[Double],
    error: Option[String] = None
) {

  /** Whether it was faster by a tenth or more. */
  private[flambeau] def gainsOn(other: Trial): Boolean =
    rowsPerSecond.getOrElse(0.0) >= Trial.Gain * other.rowsPerSecond.getOrElse(0.0)

  private[flambeau] def rate: String = rowsPerSecond.fold("failed")(Trial.shown("%,.0f", _))
}

private[flambeau] object Trial {

  /** A larger value is worth it where it trains so many times as many rows a second. */
  val Gain = 1.1

  def shown(format: String, values: Any*): String = format.formatLocal(Locale.ROOT, values: _*)
}

/** What a fit of an estimator on a DataFrame would take: the rows are counted, and the rest is estimated from trials. Seconds
  * of a step and of an epoch are those after a first epoch, which warms up.
  *
  * @param numRows
  *   the number of training rows
  * @param numValidationRows
  *   the number of validation rows
  * @param numBytes
  *   bytes of the shards that the fit writes where it does not read the rows in place, by those of the trials' rows; 0 with
  *   `inPlace` always
  * @param peakMemoryBytes
  *   the largest memory that a worker's process has had by the end of the first trial. A fit keeps decoded rows beside it, in
  *   each worker up to `memoryBudget`
  * @param epochs
  *   the epochs of the fit
  * @param stepsPerEpoch
  *   optimizer steps in an epoch
  * @param secondsPerStep
  *   seconds of a step
  * @param dataSeconds
  *   those in which the first worker waited for rows
  * @param modelSeconds
  *   those of forward, loss and backward
  * @param reduceSeconds
  *   those of averaging gradients, waiting for slower workers included
  * @param optimizerSeconds
  *   those of clipping and the optimizer
  * @param validationSeconds
  *   seconds an epoch for the validation rows: each waits for data as a training row does, and takes a third of its
  *   `modelSeconds`
  * @param startSeconds
  *   seconds of the first trial's workers outside its steps, where they read the first rows and load the program
  * @param bottleneck
  *   what held up the steps of the first trial most, none where that is not known
  * @param trials
  *   the trials, that of the estimator's own params first
  */
final case class Plan private[flambeau] (
    numRows: Long,
    numValidationRows: Long,
    numBytes: Long,
    peakMemoryBytes: Long,
    epochs: Int,
    stepsPerEpoch: Long,
    secondsPerStep: Double,
    dataSeconds: Double,
    modelSeconds: Double,
    reduceSeconds: Double,
    optimizerSeconds: Double,
    validationSeconds: Double,
    startSeconds: Double,
    bottleneck: Option[Bottleneck],
    trials: Seq[Trial]
) {
  import Plan._

  /** Seconds that the training would take on the workers, as `summary.trainingSeconds` counts them, with all `epochs`:
    * `startSeconds`, and for each epoch its steps and its validation. Writing the rows comes before that, and checkpoints come
    * on top.
    */
  def expectedSeconds: Double = startSeconds + epochs * (stepsPerEpoch * secondsPerStep + validationSeconds)

  /** The value to take of `numWorkers`, `numThreads` and `batchSize` each, none for one that is not to be set: the smallest
    * that trained within a tenth of the most rows a second. Params were tried one at a time: taken together their gains may be
    * others.
    */
  def suggestions: Map[String, Option[Int]] =
    Tried.map(param => param.name -> param.value(suggested(param))).toMap

  /** The plan in lines. */
  override def toString: String = {
    val parts = Seq(
      "data" -> dataSeconds,
      "model" -> modelSeconds,
      "reduce" -> reduceSeconds,
      "optimizer" -> optimizerSeconds
    )
    val shares = parts.map { case (part, seconds) =>
      Trial.shown("%s %,.1f ms", part, 1000 * seconds)
    }.mkString(", ")
    val told = Seq(
      "rows" -> Trial.shown("%,d, and %,d for validation", numRows, numValidationRows),
      "to write" -> Trial.shown("about %,.2f MB, unless the rows are read in place", numBytes / 1e6),
      "memory of a worker" -> Trial.shown("%,.0f MB, and rows up to memoryBudget", peakMemoryBytes / 1e6),
      "a step" -> Trial.shown("%,.1f ms (%s)", 1000 * secondsPerStep, shares),
      "training" ->
        Trial.shown("about %,.2f s for %d epochs, %,d steps in each", expectedSeconds, epochs, stepsPerEpoch)
    )
    val more = bottleneck.map("held up by" -> _.advice).toSeq ++ Tried.map("suggestion" -> suggestion(_)) ++
      trials.flatMap(_.error).map("failed" -> _)
    (told ++ more).map { case (heading, text) => s"$heading: $text" }.mkString("\n")
  }

  private def suggestion(param: TriedParam): String = {
    val (own, found) = (trials.head, suggested(param))
    val text = s"${param.name} ${param.shown(found)}, ${found.rate} rows a second"
    if (found eq own) text
    else s"$text in place of ${own.rate} with ${param.name} ${param.shown(own)}${param.note}"
  }

  /** The trial with the value to take of a param. */
  private def suggested(param: TriedParam): Trial = {
    val own = trials.head
    val others =
      trials.tail.filter(trial => Tried.filter(one => one.value(trial) != one.value(own)) == Seq(param))
    val fit = (own +: others).filter(_.rowsPerSecond.isDefined)
    val best = fit.maxBy(_.rowsPerSecond.get)
    fit.filter(trial => (trial eq best) || !best.gainsOn(trial)).minBy(param.value(_).getOrElse(Int.MaxValue))
  }
}

private[flambeau] object Plan {

  /** A param that trials differ in.
    *
    * @param note
    *   what to mind in taking another value
    */
  private final case class TriedParam(name: String, value: Trial => Option[Int], note: String = "") {
    def shown(trial: Trial): String = value(trial).fold("not set")(_.toString)
  }

  private val Tried = Seq(
    TriedParam(
      "numWorkers",
      trial => Some(trial.numWorkers),
      "; workers with the same batchSize make a larger global batch"
    ),
    TriedParam("numThreads", _.numThreads),
    TriedParam(
      "batchSize",
      trial => Some(trial.batchSize),
      "; another batch size is another training: find the learning rate anew"
    )
  )
}
