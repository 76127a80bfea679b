package flambeau.internal.scoring

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.catalyst.expressions.codegen.GenerateUnsafeRowJoiner
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.vectorized.{ColumnVector, ColumnarBatch}

/** A partition's rows with their outputs, scored in batches of the task's `batchSize`. A batch is read ahead of the row that is
  * asked for, and no more; a row is good until the next one is asked for.
  *
  * Spark writes a row over with the next, so a batch's rows are held as copies of their bytes.
  *
  * @param carried
  *   the fields of the rows
  * @param ordinals
  *   the place of each input among them
  */
private[flambeau] final class ScoredRows(
    task: ScoringTask,
    rows: Iterator[InternalRow],
    carried: StructType,
    ordinals: Array[Int],
    metrics: ScoringMetrics
) extends Iterator[InternalRow] {
  private val program = new LoadedTask(task, ordinals, metrics)
  private val held = new HeldRows(carried.length)
  private var predictions = new Predictions(task.outputs, 0)
  private var outputs = batchOf(predictions)
  private val toUnsafe = UnsafeProjection.create(carried)
  private val outputToUnsafe = UnsafeProjection.create(task.outputSchema)
  private val joiner = GenerateUnsafeRowJoiner.create(carried, task.outputSchema)
  private var numRows = 0
  private var nextRow = 0

  override def hasNext: Boolean = {
    if (nextRow == numRows) fill()
    nextRow < numRows
  }

  override def next(): InternalRow = {
    if (!hasNext) throw new NoSuchElementException("there are no more rows")
    val output = outputToUnsafe(outputs.getRow(nextRow))
    val row = joiner.join(held.get(nextRow), output)
    nextRow += 1
    row
  }

  private def fill(): Unit = {
    held.clear()
    while (!program.isFull && rows.hasNext) {
      val row = rows.next() match {
        case unsafe: UnsafeRow => unsafe
        case other             => toUnsafe(other)
      }
      program.add(row)
      held.add(row)
    }
    if (predictions.capacity < program.numRows) {
      predictions = new Predictions(task.outputs, program.numRows)
      outputs = batchOf(predictions)
    }
    nextRow = 0
    numRows = program.score(predictions, 0)
  }

  private def batchOf(predictions: Predictions): ColumnarBatch =
    new ColumnarBatch(predictions.vectors.toArray[ColumnVector], predictions.capacity)
}
