package flambeau.internal.rows

/** Why rows can't be read in place.
  *
  * @param isNotable
  *   whether a user may have expected otherwise, so that a log tells it
  */
private[rows] final class NotInPlace(reason: String, val isNotable: Boolean = true, cause: Throwable = null)
    extends RuntimeException(reason, cause)
