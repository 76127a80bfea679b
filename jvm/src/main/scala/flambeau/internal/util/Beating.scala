package flambeau.internal.util

import java.util.concurrent.{Executors, ThreadFactory, TimeUnit}

/** What is done again and again while something else runs: a lease, a claim. */
private[flambeau] object Beating {
  private val LastBeatSeconds = 60L

  /** Runs `use` while a thread of its own calls `beat` every so many seconds, and then `end` with whether `use` went well.
    * The end waits up to 60 s for a beat that is under way and for `end`; a store may hang.
    */
  def apply[T](name: String, seconds: Double)(beat: => Unit, end: Boolean => Unit)(use: => T): T = {
    val timer = Executors.newSingleThreadScheduledExecutor(new ThreadFactory {
      override def newThread(run: Runnable): Thread = {
        val thread = new Thread(run, name)
        thread.setDaemon(true)
        thread
      }
    })
    val millis = math.max(1L, (seconds * 1000).toLong)
    val beats = timer.scheduleWithFixedDelay(() => beat, millis, millis, TimeUnit.MILLISECONDS)
    var isWell = false
    try {
      val result = use
      isWell = true
      result
    } finally {
      beats.cancel(false)
      val ended = isWell
      timer.execute(() => end(ended))
      timer.shutdown()
      try timer.awaitTermination(LastBeatSeconds, TimeUnit.SECONDS)
      catch { case _: InterruptedException => Thread.currentThread().interrupt() }
    }
  }
}
