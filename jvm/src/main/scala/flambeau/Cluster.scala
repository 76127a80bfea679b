package flambeau

import java.util.UUID

import scala.reflect.ClassTag
import scala.util.control.NonFatal

import flambeau.jni.{NativeLibrary, StoredFile}
import org.apache.spark.sql.SparkSession
import org.apache.spark.{BarrierTaskContext, SparkContext}
import org.slf4j.LoggerFactory

/** What the driver asks of Spark before a training: task slots, and a work directory that all workers reach. */
private[flambeau] object Cluster {
  private val log = LoggerFactory.getLogger("flambeau")

  private val SlotPollMillis = 1000L
  private val RegistrationMillis = 30000L

  /** The setting that names the work directory of fits whose `workDir` is not set. */
  val WorkDir = "spark.flambeau.workDir"

  // Those of the native store, as it names them where it refuses another.
  private val Schemes = Seq("file", "dbfs", "s3", "s3a", "abfs", "abfss", "gs")

  private val Local = """local(?:\[(\d+|\*)(?:,.*)?\])?""".r
  private val SeveralJvms = """local-cluster\[\s*\d+\s*,\s*(\d+)\s*,.*\]""".r

  /** Whether driver and workers are one JVM: `local`, `local[n]`. */
  def isLocal(spark: SparkSession): Boolean = Local.pattern.matcher(spark.sparkContext.master).matches

  /** Whether workers run on this machine, in one JVM or several. */
  def sharesMachine(spark: SparkSession): Boolean = spark.sparkContext.master.startsWith("local")

  /** Waits up to `seconds` for as many task slots as there are workers, with `numGpus` GPUs each. Executors of a session that
    * has just started are waited for too.
    *
    * Throws ClusterException, with the numbers, where they don't come, and at once where dynamic allocation is on, which
    * Spark refuses in barrier stages, and where Spark cannot assign the GPUs.
    */
  def checkSlots(spark: SparkSession, numWorkers: Int, numGpus: Int, seconds: Double): Unit = {
    if (numGpus > 0) TaskGpus.check(spark)
    if (spark.sparkContext.getConf.getBoolean("spark.dynamicAllocation.enabled", false) && !isLocal(spark))
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
            "slotTimeout waits for executors that are still starting"
        )
      }
      Thread.sleep(SlotPollMillis)
    }
  }

  /** For how long executors of a session that has just started may still be on their way. */
  private def startingMillis(spark: SparkSession): Long =
    if (isLocal(spark)) 0
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
      case (Local("*"), _)    => Runtime.getRuntime.availableProcessors / cpus
      case (Local(number), _) => Option(number).fold(1)(_.toInt) / cpus
      case (_, Some(each))    =>
        // One of the infos is the driver's own.
        val executors = sc.statusTracker.getExecutorInfos.length - 1
        executors * TaskGpus.slots(sc.getConf, numGpus).fold(each / cpus)(math.min(_, each / cpus))
      case _ => sc.defaultParallelism / cpus
    }
  }

  /** Runs `action`, which runs Spark jobs on this thread, so that an interrupt of the thread cancels them. */
  def interruptible[T](sc: SparkContext)(action: => T): T = {
    val tag = s"flambeau-${UUID.randomUUID}"
    sc.addJobTag(tag)
    try action
    catch {
      case error: Throwable if isInterrupt(error) =>
        log.warn("cancelling the training's Spark jobs")
        sc.cancelJobsWithTag(tag)
        throw error
    } finally sc.removeJobTag(tag)
  }

  private def isInterrupt(error: Throwable): Boolean =
    Iterator.iterate(error)(_.getCause).takeWhile(_ != null).take(20).exists(
      _.isInstanceOf[InterruptedException]
    )

  /** Runs `function` in one Spark task and returns its result: for what only workers can reach. */
  def onWorker[T: ClassTag](spark: SparkSession)(function: () => T): T =
    spark.sparkContext.parallelize(Seq(0), 1).map(_ => function()).collect().head

  /** Has every worker write into the work directory and read what the others wrote. One barrier stage.
    *
    * Throws StoreException where the directory is not shared, and ClusterException where a worker has no libtorch.
    */
  def probe(spark: SparkSession, work: WorkDirectory, numWorkers: Int): Unit = {
    val directory = work.path("probes", work.newId())
    val answers = interruptible(spark.sparkContext) {
      spark.sparkContext
        .parallelize(0 until numWorkers, numWorkers)
        .barrier()
        .mapPartitions(_ => Iterator.single(probeFrom(work, directory)))
        .collect()
    }
    for (
      Answer(host, Some(Problem(isEnvironment, text))) <- answers.sortBy(!_.problem.exists(_.isEnvironment))
    )
      throw (
        if (isEnvironment) new ClusterException(s"the worker on $host cannot train: $text")
        else
          new StoreException(
            s"workDir ${work.uri} is not a directory that all workers reach: on $host, $text; " +
              "give a path on storage that they share"
          )
      )
  }

  /** What keeps a worker from training: something that its machine lacks, or the work directory. */
  private final case class Problem(isEnvironment: Boolean, text: String)
  private final case class Answer(host: String, problem: Option[Problem])

  /** What each task of `probe` runs. */
  private def probeFrom(work: WorkDirectory, directory: String): Answer = {
    val context = BarrierTaskContext.get()
    val rank = context.partitionId()
    def attempt(isEnvironment: Boolean)(action: => Unit): Option[Problem] =
      try {
        action
        None
      } catch { case NonFatal(error) => Some(Problem(isEnvironment, String.valueOf(error.getMessage))) }

    val own = attempt(isEnvironment = true)(NativeLibrary.api(work.settings.get))
      .orElse(attempt(isEnvironment = false)(work.write(s"$directory/$rank", RankTask.hostName.getBytes)))
    val isWritten = context.allGather(if (own.isEmpty) "+" else "-").forall(_ == "+")
    val seen = if (!isWritten) own
    else {
      val missing = context.getTaskInfos().indices.filterNot(other => work.sees(s"$directory/$other"))
      context.barrier()
      if (rank == 0) work.delete("probes", directory.split('/').last)
      if (missing.isEmpty) None
      else Some(Problem(
        isEnvironment = false,
        s"files that workers ${missing.mkString(", ")} wrote are not seen"
      ))
    }
    Answer(RankTask.hostName, seen)
  }

  /** Whether this process sees what workers write into the work directory; true in local mode. */
  def isVisible(spark: SparkSession, work: WorkDirectory): Boolean = isLocal(spark) || {
    val name = work.newId()
    val file = work.path("probes", name, "seen")
    onWorker(spark)(() => work.write(file, "seen".getBytes))
    try work.sees(file)
    finally onWorker(spark)(() => work.delete("probes", name))
  }

  /** Removes what crashed fits left in the work directory long ago; a failure is told and no more. */
  def sweep(site: Site): Unit =
    try Json.items(site.ask(Site.question("sweep"))).foreach { swept =>
        val (uri, days, error) = (swept.get("uri").asText, swept.get("days").asText, swept.get("error"))
        if (error.isNull) log.info("removed {}, left behind {} days ago", uri: Any, days: Any)
        else log.warn(s"$uri, left behind $days days ago, could not be removed: ${error.asText}")
      }
    catch {
      case NonFatal(error) =>
        log.warn(
          s"what older fits left in ${site.work.uri} could not be removed: ${Launch.firstLine(error)}"
        )
    }

  /** The work directory of a fit: the given one, that of `spark.flambeau.workDir`, or a temporary one in local mode. */
  def workDirectory(spark: SparkSession, path: Option[String]): WorkDirectory =
    path.orElse(spark.conf.getOption(WorkDir).filter(_.nonEmpty)) match {
      case Some(location) =>
        // Databricks mounts these, whatever its default file system is.
        val stays = WorkDirectory.hasScheme(location) || location.matches("/(dbfs|Volumes|Workspace)/.*")
        val qualified = if (stays) None else Some(Directory.qualified(spark, location))
        val uri = qualified.fold(location)(_.toString)
        for (scheme <- StoredFile.schemeOf(uri) if !Schemes.contains(scheme)) {
          val wayOut =
            if (stays) ""
            else s"; $location lies there by fs.defaultFS, a path that all machines see is file:///..."
          throw new ParamException(
            s"workDir: the scheme `$scheme` of $uri is not supported; supported: local paths, ${Schemes.mkString(", ")}$wayOut"
          )
        }
        val path = qualified.map(_.toUri).filter(_.getScheme == "file").fold(uri)(_.getPath)
        WorkDirectory(WorkDirectory.absolute(path), Settings.of(spark))
      case None if isLocal(spark) =>
        WorkDirectory(WorkDirectory.temporary, Settings.of(spark), isTemporary = true)
      case None =>
        throw new ParamException(
          s"workDir must be given on a cluster, or $WorkDir be set: a directory that the driver and all workers reach, " +
            "such as a path on shared storage or an s3, abfss or gs URI"
        )
    }
}
