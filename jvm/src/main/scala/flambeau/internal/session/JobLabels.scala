package flambeau.internal.session

import org.apache.spark.SparkContext

/** Labels the Spark jobs that a thread starts as those of a fit, for Spark's UI and its status tracker.
  *
  * The label is the jobs' description, behind the thread's own where it has one, and `name` is their group where the
  * thread has none: by its own group a notebook cancels them.
  */
private[flambeau] final class JobLabels private (sc: SparkContext, name: String) {
  import JobLabels._

  private val before = Option(sc.getLocalProperty(Description)).fold("")(own => s"$own: ")

  /** Says which part of the fit the next jobs are for. */
  def say(part: String): Unit = sc.setLocalProperty(Description, s"$before$name: $part")
}

private[flambeau] object JobLabels {
  // Properties of a thread, by their names in SparkContext.
  private val Group = "spark.jobGroup.id"
  private val Description = "spark.job.description"

  /** Runs `action` with labels for the jobs of `name`; after it the thread has its own again. */
  def of[T](sc: SparkContext, name: String)(action: JobLabels => T): T = {
    val own = Seq(Group, Description).map(key => key -> sc.getLocalProperty(key))
    if (own.head._2 == null) sc.setLocalProperty(Group, name)
    try action(new JobLabels(sc, name))
    finally own.foreach { case (key, value) => sc.setLocalProperty(key, value) }
  }
}
