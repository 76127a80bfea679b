package flambeau.internal.util

/** Which of some names was meant by one that is not among them. */
private[flambeau] object Similarity {

  /** Below this, two names have too little in common for a hint. */
  private val Cutoff = 0.6

  /** The most similar of the names; none where none is close. */
  def closest(name: String, names: Seq[String]): Option[String] = {
    val close = names.map(other => other -> ratio(name, other)).filter(_._2 >= Cutoff)
    if (close.isEmpty) None else Some(close.maxBy(_._2)._1)
  }

  /** How much of two strings is in matching blocks, from 0 to 1 (Ratcliff and Obershelp). */
  private def ratio(one: String, other: String): Double = {
    val total = one.length + other.length
    if (total == 0) 1.0 else 2.0 * matching(one, other) / total
  }

  private def matching(one: String, other: String): Int = {
    val blocks = for {
      i <- one.indices
      j <- other.indices
      length = one.drop(i).zip(other.drop(j)).takeWhile { case (a, b) => a == b }.length
      if length > 0
    } yield (length, i, j)
    if (blocks.isEmpty) 0
    else {
      val (length, i, j) = blocks.maxBy { case (size, left, right) => (size, -left, -right) }
      length + matching(one.take(i), other.take(j)) + matching(one.drop(i + length), other.drop(j + length))
    }
  }
}
