package flambeau.internal.mlflow

import java.util.ArrayList
import java.util.concurrent.{Callable, Executors, LinkedBlockingDeque, TimeUnit, TimeoutException}

import scala.collection.JavaConverters._
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.internal.util.{Failures, Json}
import org.slf4j.LoggerFactory

/** A run of MLflow's that a fit is logged into, and the thread that writes to it, so that a server that is slow or gone holds
  * up nobody. What could not be written is tried again with what comes next.
  *
  * @param existing
  *   the id of a run that there is; without one `create` makes one
  * @param create
  *   makes a run, and returns its id
  * @param params
  *   the params that the run gets
  */
private[mlflow] final class TrackedRun(
    server: TrackingServer,
    existing: Option[String],
    create: () => String,
    params: Seq[(String, String)]
) {
  import TrackedRun._

  private val writer = Executors.newSingleThreadExecutor { (task: Runnable) =>
    val thread = new Thread(task, "flambeau-mlflow")
    thread.setDaemon(true)
    thread
  }

  private val (waitingParams, waitingTags, waitingMetrics) = (newQueue(), newQueue(), newQueue())

  // Of the thread that writes.
  @volatile private var id = existing
  private var hasParams = false
  private var hasWarned = false

  /** What the run is to end as. */
  @volatile private var status = Option.empty[String]

  /** Logs metrics at a step; NaN stands for what is no finite number. */
  def addMetrics(step: Long, values: Seq[(String, Double)]): Unit = {
    val now = System.currentTimeMillis
    for ((name, value) <- values)
      add(waitingMetrics, pair(name, value).put("timestamp", now).put("step", step))
    writer.submit(task)
  }

  /** Sets tags. */
  def addTags(tags: Seq[(String, String)]): Unit = {
    for ((name, value) <- tags) add(waitingTags, pair(name, value))
    writer.submit(task)
  }

  /** Waits until all is written, up to half a minute; the run's id where it is. */
  def flush(): Option[String] =
    try if (writer.submit(task).get(EndSeconds, TimeUnit.SECONDS)) id else None
    catch {
      case _: TimeoutException =>
        warn("it does not answer")
        None
    }

  /** Ends the run, where it is the fit's own, and the thread. */
  def end(as: String): Unit = {
    if (existing.isEmpty) status = Some(as)
    flush()
    writer.shutdown()
  }

  /** Says once, as a warning, that something is missing in the run, and why. */
  def warn(why: String): Unit = synchronized {
    val text = s"the fit goes on, but not all of it is logged to MLflow: $why"
    if (hasWarned) log.debug(text) else log.warn(text)
    hasWarned = true
  }

  /** Writes what waits; whether it could. */
  private val task: Callable[Boolean] = () =>
    try {
      write()
      true
    } catch {
      case NonFatal(error) =>
        warn(Failures.firstLine(error))
        false
    }

  private def write(): Unit = {
    val run = id.getOrElse {
      val made = create()
      id = Some(made)
      made
    }
    if (!hasParams) {
      // A param's value never changes in MLflow, and the run may have one of that name.
      val known =
        if (existing.isEmpty) Set.empty[String]
        else Json.items(server.run(run).path("data").get("params")).map(_.get("key").asText).toSet
      for ((name, value) <- params if !known(name)) add(waitingParams, pair(name, value))
      hasParams = true
    }
    send(run, "params", waitingParams, MostParams)
    send(run, "tags", waitingTags, MostParams)
    send(run, "metrics", waitingMetrics, MostMetrics)
    for (ended <- status) {
      val update = Json.obj().put("run_id", run).put("status", ended)
      server.post("runs/update", update.put("end_time", System.currentTimeMillis))
      status = None
    }
  }

  /** Logs what waits, in batches; one that MLflow refuses as such is told of and let go, since it never takes it. */
  private def send(run: String, kind: String, waiting: Queue, most: Int): Unit =
    while (!waiting.isEmpty) {
      val batch = new ArrayList[JsonNode]
      waiting.drainTo(batch, most)
      val body = Json.obj().put("run_id", run)
      body.replace(kind, Json.array(batch.asScala))
      try server.post("runs/log-batch", body)
      catch {
        case error: TrackingException if error.status == 400 => warn(error.getMessage)
        case error: Throwable =>
          batch.asScala.reverse.foreach(waiting.offerFirst)
          throw error
      }
    }
}

private[mlflow] object TrackedRun {
  private val log = LoggerFactory.getLogger("flambeau")

  /** How long a fit that has ended waits for what it told to be written. */
  private val EndSeconds = 30L

  /** How much of a kind is kept while it cannot be written. */
  private val NumKept = 100000

  // What MLflow takes in a batch.
  private val MostParams = 100
  private val MostMetrics = 1000

  private type Queue = LinkedBlockingDeque[JsonNode]

  private def newQueue(): Queue = new LinkedBlockingDeque[JsonNode](NumKept)

  /** A name and its value, as MLflow takes metrics, params and tags. */
  def pair(name: String, value: Any): ObjectNode = {
    val json = Json.obj().put("key", name)
    json.replace("value", Json.of(value, name))
    json
  }

  /** The oldest goes where there is no room. */
  private def add(queue: Queue, item: JsonNode): Unit = while (!queue.offerLast(item)) queue.pollFirst()
}
