package flambeau.internal.scoring

import flambeau.jni.{Scorer, ScorerSpec}
import flambeau.internal.session.Settings
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.types.{DataType, StructField, StructType}
import org.apache.spark.sql.vectorized.ColumnarBatch

/** A column that the program reads: the input that it is a part of, and how many bytes after the row's first. */
private[flambeau] final case class InputColumn(input: Int, offset: Int, reader: InputReader)

/** What the operator tells Spark: how many rows it scored, and the nanoseconds that the program took for them. */
private[flambeau] final case class ScoringMetrics(numRows: SQLMetric, nanoseconds: SQLMetric)

/** What scores the rows of a partition; it travels from the driver to the tasks.
  *
  * @param outputs
  *   the types of the outputs' columns and how they are filled
  */
private[flambeau] final case class ScoringTask(
    spec: ScorerSpec,
    settings: Settings,
    inputs: Seq[InputColumn],
    outputs: Seq[(DataType, OutputContents)]
) {

  /** The outputs' columns, without their names. */
  def outputSchema: StructType = StructType(outputs.zipWithIndex.map { case ((dtype, _), index) =>
    StructField(s"_$index", dtype)
  })

  /** The same for some of the outputs, by their places. */
  def keep(places: Seq[Int]): ScoringTask = copy(
    spec = spec.copy(fields = if (spec.fields.isEmpty) Nil else places.map(spec.fields)),
    outputs = places.map(outputs)
  )

  /** Whether the outputs of a batch of Spark's, which has about 4096 rows, are of a size to be held as one. */
  def isNarrow: Boolean = spec.outputRowBytes <= (64 << 10)
}

/** A program that is loaded for a task, with memory for the rows that it is to score next. */
private[flambeau] final class LoadedTask(task: ScoringTask, ordinals: Array[Int], metrics: ScoringMetrics) {
  private val scorer = Scorer(task.spec, task.settings.get)
  private val batch = scorer.newBatch()
  private val inputs = task.inputs.toArray

  /** How many rows it takes at once. */
  def capacity: Int = batch.capacity

  /** Whether no more rows fit. */
  def isFull: Boolean = batch.isFull

  /** How many rows were read and not scored yet. */
  def numRows: Int = batch.numRows

  /** Reads the inputs of a row. */
  def add(row: UnsafeRow): Unit = {
    batch.makeRoom(1)
    var index = 0
    while (index < inputs.length) {
      val input = inputs(index)
      input.reader.putRow(
        row,
        ordinals(index),
        batch.buffer(input.input),
        batch.end(input.input) + input.offset
      )
      index += 1
    }
    batch.addRows(1)
  }

  /** Reads the inputs of rows of a batch. */
  def add(columns: ColumnarBatch, start: Int, count: Int): Unit = {
    batch.makeRoom(count)
    for ((input, ordinal) <- inputs.zip(ordinals)) {
      val to = batch.buffer(input.input)
      val at = batch.end(input.input) + input.offset
      val step = batch.rowBytes(input.input)
      input.reader.putColumn(columns.column(ordinal), start, count, to, at, step)
    }
    batch.addRows(count)
  }

  /** Scores the rows, puts their outputs at a place, and forgets them. Returns how many there were. */
  def score(to: Predictions, start: Int): Int = {
    val begun = System.nanoTime()
    val count = batch.numRows
    if (count > 0) to.put(start, count, scorer.score(batch))
    batch.clear()
    metrics.numRows += count.toLong
    metrics.nanoseconds += System.nanoTime() - begun
    count
  }
}
