package flambeau.jni

import scala.collection.mutable

/** A program for scoring, and how many tasks use it. */
private[jni] final class LoadedProgram(val key: String, open: () => Long) {
  var borrowers = 0

  /** The opened scorer. The first task to ask loads it, the others wait. */
  lazy val handle: Long = open()
}

/** The programs of this JVM: those that tasks use, and beside them the last used, up to four in all. */
private[jni] object LoadedPrograms {
  private val Kept = 4

  /** By key, the least recently used first. */
  private val programs = mutable.LinkedHashMap.empty[String, LoadedProgram]

  /** The program of a spec on a GPU, or on the CPU, loaded where it is not there yet; [[release]] gives it back. */
  def borrow(
      api: TorchApi,
      store: => StoreApi,
      spec: ScorerSpec,
      numThreads: Int,
      gpu: Option[Int] = None
  ): LoadedProgram = {
    val key = s"${spec.key}|$numThreads|$gpu"
    val program = synchronized {
      val found = programs.remove(key).getOrElse(
        new LoadedProgram(
          key,
          () => {
            val program = spec.local(spec.program, store)
            val weights = spec.weights.map(spec.local(_, store))
            api.openScorer(spec.json(program, weights, numThreads, gpu))
          }
        )
      )
      programs.put(key, found)
      found.borrowers += 1
      found
    }
    try program.handle
    catch {
      case error: Throwable =>
        synchronized {
          program.borrowers -= 1
          if (program.borrowers == 0) programs.remove(key)
        }
        throw error
    }
    program
  }

  /** Gives a program back, and frees those that nobody uses, but for the last used. */
  def release(api: TorchApi, program: LoadedProgram): Unit = {
    val freed = synchronized {
      program.borrowers -= 1
      val idle = programs.values.filter(_.borrowers == 0).take(programs.size - Kept).toList
      idle.foreach(one => programs.remove(one.key))
      idle
    }
    freed.foreach(one => api.closeScorer(one.handle))
  }
}
