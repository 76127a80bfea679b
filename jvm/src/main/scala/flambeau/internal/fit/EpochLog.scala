package flambeau.internal.fit

import flambeau.{Training, TrainingListener}
import org.slf4j.LoggerFactory

/** Logs each epoch of a fit. The logger is `flambeau`, the level INFO. */
private[flambeau] object EpochLog extends TrainingListener {
  private val log = LoggerFactory.getLogger("flambeau")

  override def onEpochEnd(training: Training): Unit = log.info(line(training))

  override def onTrainEnd(training: Training): Unit =
    if (training.epoch + 1 < training.epochs)
      log.info(s"training stopped early after epoch ${training.epoch + 1} of ${training.epochs}")

  /** A finished epoch in one line. */
  def line(training: Training): String = {
    val values = training.metrics.toSeq.map { case (name, value) =>
      val shown = if (value.isNaN) "-" else f"$value%.4g"
      s"${name.replaceFirst("^val_", "validation ")} $shown"
    }
    val rows = training.rowsPerSecond.map(rows => f"$rows%,.0f rows/s")
    s"epoch ${training.epoch + 1} of ${training.epochs}: ${(values ++ rows).mkString(", ")}"
  }
}
