package flambeau.internal.fit

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.StandardCopyOption.ATOMIC_MOVE
import java.nio.file.{Files, NoSuchFileException, Path, Paths}

import flambeau.internal.storage.WorkDirectory
import org.apache.spark.{BarrierTaskContext, TaskKilledException}

/** Where the ranks of one machine meet: a directory, in which each leaves a message for the others.
  *
  * Spark's own all-gather takes a second, since a task sleeps that long between two looks at whether all have come. A
  * directory takes milliseconds.
  */
private[flambeau] final class MeetingPlace(directory: String, context: BarrierTaskContext) {
  import MeetingPlace._

  /** Every rank's message, by rank. Waits for all ranks; throws TaskKilledException where Spark ends the stage, as it does
    * where one of them is gone.
    */
  def allGather(message: String): Seq[String] = {
    val place = Files.createDirectories(Paths.get(directory))
    val rank = context.partitionId()
    val part = Files.write(place.resolve(s"$rank.part"), message.getBytes(UTF_8))
    Files.move(part, place.resolve(rank.toString), ATOMIC_MOVE)
    context.getTaskInfos().indices.map(other => await(place.resolve(other.toString)))
  }

  private def await(file: Path): String = {
    var message = read(file)
    while (message.isEmpty) {
      if (context.isInterrupted()) throw new TaskKilledException("the training was cancelled")
      Thread.sleep(PollMillis)
      message = read(file)
    }
    message.get
  }
}

private[flambeau] object MeetingPlace {
  private val PollMillis = 2L

  /** Where the ranks of an attempt meet, for workers that share this machine and have the work directory among its files.
    */
  def of(work: WorkDirectory, attempt: String, sharesMachine: Boolean): Option[String] =
    if (sharesMachine && work.uri.startsWith("/")) Some(work.path("attempts", attempt, "meeting")) else None

  private def read(file: Path): Option[String] =
    try Some(new String(Files.readAllBytes(file), UTF_8))
    catch { case _: NoSuchFileException => None }
}
