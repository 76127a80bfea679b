package flambeau.internal.util

/** What an exception tells. */
private[flambeau] object Failures {

  /** The exception and its causes, from the outermost on. */
  def causes(error: Throwable): Seq[Throwable] =
    // A cause may be among its own causes.
    Iterator.iterate(error)(_.getCause).takeWhile(_ != null).take(20).toList

  /** The first line of its message; its class where it has none. */
  def firstLine(error: Throwable): String =
    Option(error.getMessage).flatMap(_.linesIterator.take(1).toSeq.headOption).getOrElse(
      error.getClass.getSimpleName
    )
}
