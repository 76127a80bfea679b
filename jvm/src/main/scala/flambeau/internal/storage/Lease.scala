package flambeau.internal.storage

import scala.util.control.NonFatal

import flambeau.internal.util.Beating
import org.slf4j.LoggerFactory

/** What keeps the sweeps of other fits from what a fit has in the work directory. */
private[flambeau] object Lease {
  private val log = LoggerFactory.getLogger("flambeau")
  private val BeatSeconds = 3600.0

  /** Runs `use` while a lease is held for it, which is dropped after a `use` that went well. A failure to write it is told
    * and no more. A temporary work directory, which nobody sweeps, has none.
    */
  def held[T](site: Site)(use: => T): T = if (site.work.isTemporary) use else beating(site)(use)

  private def beating[T](site: Site)(use: => T): T = {
    val lease = site.work.newId()
    def tell(ask: String): Unit =
      try site.ask(Site.question(ask).put("lease", lease))
      catch {
        case NonFatal(error) => log.warn("the lease of a fit could not be written: {}", error.getMessage)
      }
    tell("holdLease")
    Beating("flambeau-lease", BeatSeconds)(tell("holdLease"), isWell => if (isWell) tell("dropLease"))(use)
  }
}
