package flambeau.internal.session

import flambeau.ClusterException
import org.apache.spark.{SparkConf, SparkException, TaskContext}
import org.apache.spark.rdd.RDD
import org.apache.spark.resource.{ResourceProfileBuilder, TaskResourceRequests}
import org.apache.spark.sql.SparkSession

import scala.reflect.ClassTag

/** The GPUs that Spark assigns to tasks. */
private[flambeau] object TaskGpus {
  private val Resource = "gpu"
  private val OfExecutor = s"spark.executor.resource.$Resource.amount"
  private val OfTask = s"spark.task.resource.$Resource.amount"

  /** The addresses of those that a task was assigned, its numbers on the machine or UUIDs; none where it was assigned none.
    */
  def of(context: TaskContext): Option[Seq[String]] =
    context.resources().get(Resource).map(_.addresses.toSeq).filter(_.nonEmpty)

  /** Throws ClusterException where Spark cannot assign one to each task of a stage. */
  def check(spark: SparkSession): Unit = {
    val conf = spark.sparkContext.getConf
    if (Session.isLocal(spark)) refuse("Spark assigns no GPUs in local mode")
    if (conf.getInt(OfExecutor, 0) < 1) refuse(s"$OfExecutor is not set, so that Spark knows of no GPUs")
  }

  /** A stage over `rdd` whose tasks are assigned one GPU each, on the executors that there are. Throws ClusterException where
    * the cluster's manager knows no stages with resources of their own.
    */
  def oneEach[T: ClassTag](rdd: RDD[T]): RDD[T] = {
    val cpus = rdd.sparkContext.getConf.getInt("spark.task.cpus", 1)
    // Without requests for executors it is one for tasks alone, which needs no new executors.
    val profile =
      new ResourceProfileBuilder().require(
        new TaskResourceRequests().cpus(cpus).resource(Resource, 1)
      ).build()
    try rdd.withResources(profile)
    catch { case error: SparkException => refuse(s"Spark refuses it: ${error.getMessage}") }
  }

  /** How many tasks of an executor have GPUs at once, `numGpus` each, or where that is 0 as many as the configuration gives a
    * task; none where GPUs set no bound.
    */
  def slots(conf: SparkConf, numGpus: Int): Option[Int] = {
    val share = if (numGpus > 0) numGpus.toDouble else conf.getDouble(OfTask, 0)
    val gpus = conf.getInt(OfExecutor, 0)
    // Parts of GPUs are of one, as Spark counts them.
    if (share <= 0 || gpus < 1) None
    else Some(if (share < 1) gpus * (1 / share).toInt else gpus / share.toInt)
  }

  private def refuse(reason: String): Nothing = throw new ClusterException(
    s"numGpusPerWorker is 1, but $reason: leave it at 0, and each worker takes a GPU of its machine"
  )
}
