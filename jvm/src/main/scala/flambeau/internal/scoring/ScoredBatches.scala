package flambeau.internal.scoring

import org.apache.spark.sql.vectorized.ColumnarBatch

/** A partition's batches of columns with the outputs as further columns; those that were there stay as they are.
  *
  * Each is scored in pieces of up to the task's `batchSize` rows, and good until the next one is asked for.
  *
  * @param ordinals
  *   the place of each input among the columns
  */
private[flambeau] final class ScoredBatches(
    task: ScoringTask,
    batches: Iterator[ColumnarBatch],
    ordinals: Array[Int],
    metrics: ScoringMetrics
) extends Iterator[ColumnarBatch] {
  private lazy val program = new LoadedTask(task, ordinals, metrics)
  private var predictions = new Predictions(task.outputs, 0)

  override def hasNext: Boolean = batches.hasNext

  override def next(): ColumnarBatch = {
    val batch = batches.next()
    if (predictions.capacity < batch.numRows) predictions = new Predictions(task.outputs, batch.numRows)
    var start = 0
    while (start < batch.numRows) {
      program.add(batch, start, program.capacity.min(batch.numRows - start))
      start += program.score(predictions, start)
    }
    val carried = Array.tabulate(batch.numCols)(batch.column)
    new ColumnarBatch(carried ++ predictions.vectors, batch.numRows)
  }
}
