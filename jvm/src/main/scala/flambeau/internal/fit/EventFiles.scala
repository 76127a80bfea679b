package flambeau.internal.fit

import java.nio.charset.StandardCharsets.UTF_8

import scala.util.Try

import com.fasterxml.jackson.databind.JsonNode
import flambeau.internal.storage.Site
import flambeau.internal.util.Json

/** The events of an attempt, from the numbered files that rank 0 writes into the work directory. */
private[flambeau] final class EventFiles(site: Site, attempt: String) {
  private val directory = site.work.path("attempts", attempt, "events")
  private var numRead = 0

  /** The events of the files that are new, up to one that is not whole: the next call tries that one again.
    *
    * Runs one Spark task where this process does not see the directory. Throws StoreException where it can't be read; the next
    * call reads the same files again.
    */
  def readNew(): Seq[JsonNode] = {
    val (files, first) = (directory, numRead + 1)
    val texts = site.here { work =>
      Iterator
        .from(first)
        .map(number => f"$files/$number%08d.json")
        .takeWhile(work.sees)
        .map(file => new String(work.read(file), UTF_8))
        .toArray
    }
    val whole = texts.toSeq.map(text => Try(Json.parse(text)).filter(_.isArray)).takeWhile(_.isSuccess)
    numRead += whole.length
    whole.flatMap(events => Json.items(events.get))
  }
}
