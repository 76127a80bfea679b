package flambeau.internal.fit

import scala.annotation.tailrec
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import flambeau.{ClusterException, ParamException, Plan, Trial, WorkerLostException}
import flambeau.internal.model.Trained
import flambeau.internal.rows.{FrameRows, Refusal, ShardSet, Split}
import flambeau.internal.session.Session
import flambeau.internal.util.{Failures, Json}
import org.apache.spark.sql.DataFrame

/** Trials of an estimator on the first rows of a DataFrame, which tell what a fit would take, and what would be faster.
  *
  * @param sample
  *   those rows
  * @param numSteps
  *   the steps of each trial after its first epoch
  * @param numRows
  *   the training rows of the sample
  * @param scale
  *   how many times as many the DataFrame has
  */
private[flambeau] final class Planning private (
    estimator: Trainable,
    sample: DataFrame,
    numSteps: Int,
    numRows: Long,
    scale: Double
) {
  import Planning._
  import Trials.changed

  /** A trial with some params in place of the estimator's, and what it trained on. Throws what a fit does. */
  private def run(set: Trainable => Unit): (Trial, Trained, ShardSet) = {
    val tried = Trials.of(estimator) { one =>
      one.setInPlace("never").setMaxRestarts(0).setLearningRate(Rate)
      // So that as much is kept of the sample, and decoded again, as would be of all rows.
      one.setMemoryBudget(math.max(LeastBudget, (estimator.getMemoryBudget / scale).toLong))
      set(one)
      one.setEpochs(1 + math.ceil(numSteps.toDouble / math.max(steps(one, numRows), 1)).toInt)
    }
    val (trained, shards) = Fit.trial(tried, sample.sparkSession).tried(new FrameRows(sample))
    val epochs = epochsOf(trained).tail
    val rate = sum(epochs, "numRows") / math.max(sum(epochs, "seconds"), 1e-9)
    (trialOf(tried, Some(rate)), trained, shards)
  }

  /** A trial for whose params the memory or the slots may not suffice, which ends it. */
  private def attempt(set: Trainable => Unit): Trial =
    try
      run { one =>
        // What is left of a batch at the end of an epoch would count for a larger part of these few.
        one.setDropLast(true)
        set(one)
      }._1
    catch {
      case NonFatal(error) if want(error).isDefined => trialOf(changed(estimator)(set), None, want(error))
    }

  /** Whether the sample has two batches with those params, or more. */
  private def hasBatches(set: Trainable => Unit = _ => ()): Boolean =
    2 * globalBatch(changed(estimator)(set)) <= numRows

  /** Trials of other params, one at a time: of the batch size doubled while that is faster, of twice the workers where there
    * are slots, else of half of them, and of other threads.
    */
  private def others(own: Trial): Seq[Trial] = {
    val sizes = doubled(own, MostDoublings)
    val spark = sample.sparkSession
    val slots = Cluster.countSlots(spark, estimator.getNumGpusPerWorker)
    val workers = if (own.numWorkers * 2 <= slots) own.numWorkers * 2 else own.numWorkers / 2
    // Lanes are a number that the estimator's own workers share.
    val ofWorkers = (one: Trainable) => one.setNumWorkers(workers).clear(one.dataLanes): Unit
    val withWorkers = if (workers > 0 && hasBatches(ofWorkers)) Seq(attempt(ofWorkers)) else Nil
    // Without a number, workers of this machine may have one each.
    val isHere = own.numThreads.isEmpty && Session.sharesMachine(spark)
    val hasOne = isHere && Runtime.getRuntime.availableProcessors < 2 * own.numWorkers
    val ofThreads = (one: Trainable) =>
      own.numThreads.fold(1)(_ / 2) match {
        case 0       => one.clear(one.numThreads): Unit
        case threads => one.setNumThreads(threads): Unit
      }
    val withThreads = if (hasBatches() && !hasOne) Seq(attempt(ofThreads)) else Nil
    sizes ++ withWorkers ++ withThreads
  }

  /** Trials of the batch size doubled, up to so often, of which the last gained nothing on the one before. */
  @tailrec
  private def doubled(last: Trial, times: Int, before: Seq[Trial] = Nil): Seq[Trial] = {
    val twice = (one: Trainable) => one.setBatchSize(2 * last.batchSize): Unit
    if (times == 0 || !hasBatches(twice)) before
    else {
      val tried = attempt(twice)
      if (tried.gainsOn(last)) doubled(tried, times - 1, before :+ tried) else before :+ tried
    }
  }
}

private[flambeau] object Planning {

  /** A learning rate that hardly moves the weights, so that no trial diverges; a step takes as long with any. */
  private val Rate = 1e-12

  /** Of the batch size: with one trial each of other workers and threads, six trials in all. */
  private val MostDoublings = 3

  /** The share of forward in `modelSeconds`: backward computes about twice as much (Kaplan et al. 2020, arXiv:2001.08361,
    * 2.1).
    */
  private val Forward = 1.0 / 3

  /** The least `memoryBudget`. */
  private val LeastBudget = 1L << 20

  /** How torch tells of memory that does not suffice, on GPUs and on the CPU. */
  private val MemoryTexts = Seq("out of memory", "allocate memory")

  /** What a fit of the estimator on `df` would take, by trials of so many steps. Throws what a fit throws before and in its
    * first steps, and ParamException for no steps. An interrupt of the thread cancels the Spark jobs.
    */
  def plan(estimator: Trainable, df: DataFrame, numSteps: Int): Plan = {
    if (numSteps < 1) throw new ParamException(s"numSteps is $numSteps, but must be at least 1")
    // Before rows are counted: what is wrong with params and columns.
    val columns = Fit.trial(Trials.of(estimator)(_ => ()), df.sparkSession).columns(new FrameRows(df))
    val (valid, split) = (columns.valid(df), columns.split)
    val (numRows, numValidationRows) =
      Session.interruptible(df.sparkSession.sparkContext)(count(valid, split))
    ShardSet.refuseNone(numRows, numValidationRows)
    val numSampled = math.min(numRows, numSteps.toLong * globalBatch(estimator))
    // Of several trials, and the rows may take long to compute.
    val frame = sample(valid, split, numSampled, numValidationRows.toDouble / numRows).persist()
    try {
      val planning = new Planning(estimator, frame, numSteps, numSampled, numRows.toDouble / numSampled)
      val (own, trained, shards) = planning.run(_ => ())
      val first +: epochs = epochsOf(trained)
      val steps = epochs.last.get("steps").asLong - first.get("steps").asLong
      def aStep(part: String): Double = sum(epochs, part) / steps
      val aRow = (sum(epochs, "dataSeconds") + Forward * sum(epochs, "modelSeconds")) / sum(epochs, "numRows")
      val written = shards.numBytes.toDouble / (shards.numRows + shards.numValidationRows)
      Plan(
        numRows,
        numValidationRows,
        if (estimator.getInPlace == "always") 0 else math.round(written * (numRows + numValidationRows)),
        epochs.last.get("peakMemoryBytes").asLong,
        estimator.getEpochs,
        this.steps(estimator, numRows),
        aStep("seconds"),
        aStep("dataSeconds"),
        aStep("modelSeconds"),
        aStep("reduceSeconds"),
        aStep("optimizerSeconds"),
        aRow * numValidationRows,
        trained.counts.trainingSeconds.get - sum(first +: epochs, "seconds"),
        trained.counts.bottleneck,
        own +: planning.others(own)
      )
    } finally frame.unpersist()
  }

  private def epochsOf(trained: Trained): Seq[JsonNode] = Json.items(trained.history.get("epochs"))

  /** The sum of a figure over records of epochs. */
  private def sum(epochs: Seq[JsonNode], name: String): Double = epochs.map(_.get(name).asDouble).sum

  /** What a trial of those params came to. */
  private def trialOf(tried: Trainable, rate: Option[Double], error: Option[String] = None): Trial =
    Trial(tried.getNumWorkers, tried.valueOf(tried.numThreads), tried.getBatchSize, rate, error)

  /** What an error says of memory or slots that did not suffice; none of another error. */
  private def want(error: Throwable): Option[String] = Failures.causes(error).flatMap {
    case lack @ (_: ClusterException | _: WorkerLostException) => Some(Failures.firstLine(lack))
    // An interpreter of programs tells its cause last.
    case cause =>
      String.valueOf(cause.getMessage).linesIterator.find(line => MemoryTexts.exists(line.contains))
  }.toSeq.headOption

  /** Optimizer steps in an epoch of so many training rows. */
  private def steps(estimator: Trainable, numRows: Long): Long = {
    val batch = estimator.getBatchSize.toLong * estimator.getNumWorkers
    val batches = if (estimator.getDropLast) numRows / batch else ceilDiv(numRows, batch)
    ceilDiv(batches, estimator.getGradientAccumulationSteps)
  }

  /** The rows of a step. */
  private def globalBatch(estimator: Trainable): Long =
    estimator.getBatchSize.toLong * estimator.getNumWorkers * estimator.getGradientAccumulationSteps

  private def ceilDiv(number: Long, by: Long): Long = (number + by - 1) / by

  /** The numbers of training and validation rows that a fit splits the DataFrame into. */
  private def count(df: DataFrame, split: Option[Split]): (Long, Long) = Refusal.told {
    split.fold((df.count(), 0L)) { split =>
      val rows = df.groupBy(split.flag.as("flag")).count().collect()
      val counts = rows.map(row => row.getBoolean(0) -> row.getLong(1)).toMap
      (counts.getOrElse(false, 0L), counts.getOrElse(true, 0L))
    }
  }

  /** The first rows, of which about `numRows` are trained on, with `share` times as many for validation; of those that a column
    * names no more than there are of the others.
    */
  private def sample(df: DataFrame, split: Option[Split], numRows: Long, share: Double): DataFrame = {
    def limited(rows: DataFrame, number: Long): DataFrame =
      rows.limit(math.min(number, Int.MaxValue.toLong).toInt)
    val numValidationRows = math.ceil(numRows * share).toLong
    split match {
      case None => limited(df, numRows)
      // Of which each is drawn by itself, so that there may be fewer for training than their share.
      case Some(_: Split.Fraction) => limited(df, (numRows + numValidationRows) * 5 / 4 + 17)
      // They may lie apart.
      case Some(indicator) =>
        val kept = limited(df.filter(indicator.flag), math.min(numRows, numValidationRows))
        limited(df.filter(!indicator.flag), numRows).union(kept)
    }
  }
}
