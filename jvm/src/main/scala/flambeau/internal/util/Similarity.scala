package flambeau.internal.util

/** Which of some names was meant by one that is not among them, as Python's difflib tells it. */
private[flambeau] object Similarity {

  /** Below this, two names have too little in common for a hint. */
  private val Cutoff = 0.6

  /** A hint at the one of the names that is close to `name`, empty where none is. */
  def suggestion(name: String, names: Seq[String]): String = {
    // Of names that are as close, the last in the alphabet.
    val close = names.sorted.reverse.map(other => other -> ratio(other, name)).filter(_._2 >= Cutoff)
    if (close.isEmpty) "" else s"; did you mean '${close.maxBy(_._2)._1}'?"
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
