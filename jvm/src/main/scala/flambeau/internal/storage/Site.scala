package flambeau.internal.storage

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.internal.session.Session
import flambeau.internal.util.{Failures, Json}
import org.apache.spark.sql.SparkSession
import org.slf4j.LoggerFactory

import scala.util.Try
import scala.util.control.NonFatal

/** A work directory as a driver reaches it: by itself where it sees the directory, else in a Spark task.
  *
  * @param isVisible
  *   whether this process sees it
  */
private[flambeau] final case class Site(spark: SparkSession, work: WorkDirectory, isVisible: Boolean) {
  import Site._

  /** Does something with the directory where it is seen. */
  def whereSeen[T](act: WorkDirectory => T): T = {
    // A copy without this object, which does not travel with tasks.
    val work = this.work
    if (isVisible) act(work) else Session.onWorker(spark)(() => act(work))
  }

  /** The supervisor's answer to a question about the directory. */
  def ask(question: ObjectNode): JsonNode = {
    val text = Json.text(question)
    Json.parse(whereSeen(_.ask(text)))
  }

  /** Writes a file of the directory whole. Throws StoreException. */
  def write(file: String, bytes: Array[Byte]): Unit = whereSeen(_.write(file, bytes))

  /** Deletes a path of the directory. A failure is told and no more, so that it hides neither a result nor an earlier
    * error.
    */
  def remove(parts: String*): Unit = {
    val uri = work.path(parts: _*)
    try ask(Site.question("remove").put("path", parts.mkString("/")))
    catch { case NonFatal(error) => log.warn(s"$uri could not be removed: ${Failures.firstLine(error)}") }
  }

  /** Removes what crashed fits left there long ago; a failure is told and no more. */
  def sweep(): Unit =
    try Json.items(ask(question("sweep"))).foreach { swept =>
        val (uri, days, error) = (swept.get("uri").asText, swept.get("days").asText, swept.get("error"))
        if (error.isNull) log.info("removed {}, left behind {} days ago", uri: Any, days: Any)
        else log.warn(s"$uri, left behind $days days ago, could not be removed: ${error.asText}")
      }
    catch {
      case NonFatal(error) =>
        log.warn(
          s"what older fits left in ${work.uri} could not be removed: ${Failures.firstLine(error)}"
        )
    }
}

private[flambeau] object Site {
  private val log = LoggerFactory.getLogger("flambeau")

  /** A question for the supervisor, to be filled in. */
  def question(ask: String): ObjectNode = Json.obj().put("ask", ask)

  /** The directory as this process reaches it: it looks whether it sees what workers write there. */
  def of(spark: SparkSession, work: WorkDirectory): Site =
    Site(spark, work, isVisible = Session.isLocal(spark) || sees(spark, work))

  private def sees(spark: SparkSession, work: WorkDirectory): Boolean = {
    val name = work.newId()
    val file = work.path(WorkDirectory.Probes, name, "seen")
    Session.onWorker(spark)(() => work.write(file, "seen".getBytes))
    val isSeen = work.sees(file)
    // What stays is swept later.
    Try(Session.onWorker(spark)(() => work.delete(WorkDirectory.Probes, name)))
    isSeen
  }
}
