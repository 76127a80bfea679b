package flambeau.internal.scoring

import flambeau.DataException
import flambeau.internal.rows.Expressions

/** What values of columns are refused with: a DataException that names the column. */
private[scoring] object InputRefusal {
  def ofNull(name: String): Nothing =
    throw new DataException(s"column '$name' holds a null: ${Expressions.Mend}")

  def ofNullInside(name: String): Nothing =
    throw new DataException(
      s"column '$name' holds an array with a null in it: ${Expressions.Mend} before transform"
    )

  /** Refuses an input's array of another length than was trained on. */
  def unlessTrained(name: String, length: Int, trained: Int): Unit =
    if (length != trained) ofLength(name, length, s"$trained were trained on")

  /** Refuses a label's array of another length than the first row's. */
  def unlessFirst(name: String, length: Int, first: Int): Unit =
    if (length != first) ofLength(name, length, s"that of the first row has $first")

  private def ofLength(name: String, length: Int, wanted: String): Nothing = throw new DataException(
    s"column '$name' holds an array of $length, where $wanted: every row's array must have that length"
  )
}
