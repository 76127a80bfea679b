package flambeau

/** What a training came to, with the names that Spark ML's summaries have.
  *
  * @param objectiveHistory
  *   the mean training loss of each epoch
  * @param totalIterations
  *   the number of epochs
  * @param bestEpoch
  *   the epoch, counted from 0, in which `monitor` was best, none where that is not known
  * @param numSteps
  *   the number of optimizer steps
  * @param trainingSeconds
  *   seconds that the training took on the workers, none where it is not known
  * @param bottleneck
  *   what held the training up most, none where it is not known
  * @param timeline
  *   the URI of the timeline that `profile` asked for, none where there is none, and in loaded models
  */
final class TrainingSummary private[flambeau] (
    val objectiveHistory: Array[Double],
    val totalIterations: Int,
    val bestEpoch: Option[Int],
    val numSteps: Long,
    val numRows: Long,
    val numValidationRows: Long,
    val trainingSeconds: Option[Double],
    val bottleneck: Option[Bottleneck],
    val timeline: Option[String]
) extends Serializable
