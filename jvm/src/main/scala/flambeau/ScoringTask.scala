package flambeau

import flambeau.jni.{Scorer, ScorerSpec}
import org.apache.spark.sql.{Row, RowFactory}

/** Scores the rows of a partition in batches.
  *
  * A batch is read ahead of the row that is asked for, and no more; a partition without rows loads no program.
  */
private[flambeau] final class ScoringTask(
    spec: ScorerSpec,
    settings: Settings,
    readers: Seq[InputReader],
    cells: Seq[Cell]
) extends (Iterator[(Row, Any)] => Iterator[Row])
    with Serializable {

  override def apply(rows: Iterator[(Row, Any)]): Iterator[Row] =
    if (!told(rows.hasNext)) Iterator.empty else new Scored(rows)

  private final class Scored(rows: Iterator[(Row, Any)]) extends Iterator[Row] {
    private val scorer = Scorer(spec, settings.get)
    private val batch = scorer.newBatch()
    private val inputs = readers.toArray
    private val outputs = cells.toArray
    private val held = new Array[Row](batch.capacity)
    private var results = Array.empty[AnyRef]
    private var next_ = 0

    override def hasNext: Boolean = {
      if (next_ == batch.numRows) fill()
      next_ < batch.numRows
    }

    override def next(): Row = {
      if (!hasNext) throw new NoSuchElementException("there are no more rows")
      val row = held(next_)
      val values = new Array[AnyRef](row.length + outputs.length)
      var index = 0
      while (index < row.length) {
        values(index) = row.get(index).asInstanceOf[AnyRef]
        index += 1
      }
      index = 0
      while (index < outputs.length) {
        values(row.length + index) = outputs(index).value(results, index, next_)
        index += 1
      }
      held(next_) = null
      next_ += 1
      RowFactory.create(values: _*)
    }

    private def fill(): Unit = {
      batch.clear()
      next_ = 0
      while (!batch.isFull && told(rows.hasNext)) {
        val (row, arrays) = told(rows.next())
        held(batch.numRows) = row
        read(row, arrays)
        batch.endRow()
      }
      if (batch.numRows > 0) results = scorer.score(batch)
    }

    private def read(row: Row, arrays: Any): Unit = {
      var rest = arrays
      var index = 0
      var left = numArrays
      while (index < inputs.length) {
        inputs(index) match {
          case reader: VectorReader => reader.read(row, batch, index)
          case reader: ArrayReader =>
            left -= 1
            if (left == 0) reader.read(rest, batch, index)
            else {
              val pair = rest.asInstanceOf[(Any, Any)]
              reader.read(pair._1, batch, index)
              rest = pair._2
            }
        }
        index += 1
      }
    }
  }

  private val numArrays = readers.count(_.isInstanceOf[ArrayReader])

  /** What reading a row gives; Spark's own complaint of a null inside an array of numbers is told in our words. */
  private def told[T](reading: => T): T =
    try reading
    catch {
      case error: RuntimeException if ScoringTask.isNullElement(error) =>
        val names = readers.collect { case reader: ArrayReader if reader.holdsNulls => s"'${reader.column}'" }
        throw new DataException(
          s"column ${names.mkString(" or ")} holds an array with a null in it: ${Expressions.Mend} before transform",
          error
        )
    }
}

private object ScoringTask {

  /** Spark 3.5 throws a NullPointerException, Spark 4 an error of this class. */
  def isNullElement(error: Throwable): Boolean = {
    val message = String.valueOf(error.getMessage)
    message.contains("NOT_NULL_ASSERT_VIOLATION") || message.contains(
      "Null value appeared in non-nullable field"
    ) ||
    message.contains("NULL value appeared in non-nullable field")
  }
}
