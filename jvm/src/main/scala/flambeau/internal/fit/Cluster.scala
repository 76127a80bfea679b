package flambeau.internal.fit

import scala.util.control.NonFatal

import flambeau.{Check, ClusterException, FlambeauException, StoreException, TransientStoreException}
import flambeau.jni.NativeLibrary
import flambeau.internal.session.{Session, TaskGpus}
import flambeau.internal.storage.WorkDirectory
import flambeau.internal.util.Machine
import org.apache.spark.BarrierTaskContext
import org.apache.spark.sql.SparkSession

/** What a training asks of its workers beforehand: task slots, and a work directory that all of them reach. */
private[flambeau] object Cluster {
  private val SlotPollMillis = 1000L
  private val RegistrationMillis = 30000L

  private val SeveralJvms = """local-cluster\[\s*\d+\s*,\s*(\d+)\s*,.*\]""".r

  /** Waits up to `seconds` for as many task slots as there are workers, with `numGpus` GPUs each. Executors of a session that
    * has just started are waited for too.
    *
    * Throws ClusterException, with the numbers, where they don't come, and at once where dynamic allocation is on, which
    * Spark refuses in barrier stages, and where Spark cannot assign the GPUs.
    */
  def checkSlots(spark: SparkSession, numWorkers: Int, numGpus: Int, seconds: Double): Unit = {
    if (numGpus > 0) TaskGpus.check(spark)
    val isDynamic = spark.sparkContext.getConf.getBoolean("spark.dynamicAllocation.enabled", false)
    if (isDynamic && !Session.isLocal(spark))
      throw new ClusterException(
        "spark.dynamicAllocation.enabled is true, and Spark runs no barrier stage with it: " +
          s"set it to false and ask for the executors that $numWorkers workers need"
      )
    val deadline = System.nanoTime + math.max((seconds * 1e9).toLong, startingMillis(spark) * 1000000)
    while (countSlots(spark, numGpus) < numWorkers) {
      if (System.nanoTime >= deadline) {
        val waited = if (seconds > 0) s" after ${Check.show(seconds)} s (slotTimeout)" else ""
        val gpus = if (numGpus > 0) s" of $numGpus GPU each" else ""
        throw new ClusterException(
          s"numWorkers is $numWorkers and the cluster has ${countSlots(spark, numGpus)} task slots$gpus$waited: " +
            "lower numWorkers, add executors, or lower spark.task.cpus; " +
            "slotTimeout waits for executors that are still starting",
          null,
          isTransient = true
        )
      }
      Thread.sleep(SlotPollMillis)
    }
  }

  /** For how long executors of a session that has just started may still be on their way. */
  private def startingMillis(spark: SparkSession): Long =
    if (Session.isLocal(spark)) 0
    else math.max(0, spark.sparkContext.startTime + RegistrationMillis - System.currentTimeMillis)

  /** Tasks that can run at once, with `numGpus` GPUs each where that is not 0. */
  def countSlots(spark: SparkSession, numGpus: Int): Int = {
    val sc = spark.sparkContext
    val cpus = sc.getConf.getInt("spark.task.cpus", 1)
    val cores = sc.master match {
      case SeveralJvms(each) => Some(each.toInt)
      case _                 => sc.getConf.getOption("spark.executor.cores").map(_.toInt)
    }
    (sc.master, cores) match {
      case (Session.Local("*"), _)    => Runtime.getRuntime.availableProcessors / cpus
      case (Session.Local(number), _) => Option(number).fold(1)(_.toInt) / cpus
      case (_, Some(each))            =>
        // One of the infos is the driver's own.
        val executors = sc.statusTracker.getExecutorInfos.length - 1
        executors * TaskGpus.slots(sc.getConf, numGpus).fold(each / cpus)(math.min(_, each / cpus))
      case _ => sc.defaultParallelism / cpus
    }
  }

  /** Has every worker write into the work directory and read what the others wrote. One barrier stage.
    *
    * Throws StoreException where the directory is not shared, TransientStoreException where its store did not answer, and
    * ClusterException where a worker has no libtorch.
    */
  def probe(spark: SparkSession, work: WorkDirectory, numWorkers: Int): Unit = {
    val directory = work.path(WorkDirectory.Probes, work.newId())
    val problems = Session.interruptible(spark.sparkContext) {
      spark.sparkContext
        .parallelize(0 until numWorkers, numWorkers)
        .barrier()
        .mapPartitions(_ => problemOf(work, directory).iterator)
        .collect()
    }
    // What a machine lacks before what a store does, and what stays so before what may pass.
    val sorted = problems.sortBy(problem => (problem.isInstanceOf[StoreException], problem.isTransient))
    sorted.headOption.foreach(throw _)
  }

  /** What keeps this worker from training, when all workers have written and seen each other's files. */
  private def problemOf(work: WorkDirectory, directory: String): Option[FlambeauException] = {
    val context = BarrierTaskContext.get()
    val rank = context.partitionId()
    val host = Machine.hostName

    def attempt(told: Throwable => FlambeauException)(action: => Unit): Option[FlambeauException] =
      try {
        action
        None
      } catch { case NonFatal(error) => Some(told(error)) }
    def lack(error: Throwable) =
      new ClusterException(s"the worker on $host cannot train: ${error.getMessage}")
    def unreached(error: Throwable) = error match {
      case error: FlambeauException if error.isTransient =>
        new TransientStoreException(s"workDir: on $host, ${error.getMessage}")
      case _ =>
        new StoreException(
          s"workDir ${work.uri} is not a directory that all workers reach: on $host, ${error.getMessage}; " +
            "give a path on storage that they share"
        )
    }

    val own = attempt(lack) {
      NativeLibrary.store(work.settings.get)
      NativeLibrary.torch(work.settings.get)
    }.orElse(attempt(unreached)(work.write(s"$directory/$rank", host.getBytes)))
    val allWrote = !context.allGather(if (own.isEmpty) "+" else "-").contains("-")
    val problem =
      if (!allWrote) own
      else {
        val unseen = attempt(unreached) {
          val missing = context.getTaskInfos().indices.filterNot(other => work.has(s"$directory/$other"))
          if (missing.nonEmpty)
            throw new StoreException(s"files that workers ${missing.mkString(", ")} wrote are not seen")
        }
        context.barrier()
        unseen
      }
    // Each its own where they do not see the same. What stays in a work directory is swept later.
    if (own.isEmpty && (rank == 0 || !allWrote || problem.nonEmpty))
      attempt(unreached)(work.delete(WorkDirectory.Probes, directory.split('/').last))
    problem
  }
}
