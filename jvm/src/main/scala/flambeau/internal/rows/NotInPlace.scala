package flambeau.internal.rows

/** Why rows can't be read in place.
  *
  * @param isScan
  *   whether they are those of one table or of files
  */
private[rows] final class NotInPlace(reason: String, val isScan: Boolean = true, cause: Throwable = null)
    extends RuntimeException(reason, cause)
