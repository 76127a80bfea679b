package flambeau.internal.scoring

import java.nio.ByteBuffer

import flambeau.{DataException, TensorColumns}
import flambeau.jni.{InputBatch, TensorRows}
import flambeau.internal.rows.Expressions
import org.apache.spark.sql.Row

/** A column of values that are ready for a tensor: the input that it is a part of, and how many bytes after the row's first. */
private[flambeau] final case class RowInput(
    name: String,
    input: Int,
    offset: Int,
    dtype: String,
    numElements: Int
) {
  def checkLength(length: Int): Unit =
    if (length != numElements)
      throw new DataException(
        s"column '$name' holds an array of $length, where $numElements were trained on: every row's array must have " +
          "that length"
      )
}

/** Reads rows of such columns, in their order. */
private[flambeau] final case class RowReader(inputs: Seq[RowInput]) {

  /** Adds a row to the batch; `first` is the place of the first column in it. */
  def read(row: Row, first: Int, batch: InputBatch): Unit = {
    batch.makeRoom(1)
    for ((input, index) <- inputs.zipWithIndex) put(row.get(first + index), input, batch)
    batch.addRows(1)
  }

  private def put(value: Any, input: RowInput, batch: InputBatch): Unit = {
    val (to, at) = (batch.buffer(input.input), batch.end(input.input) + input.offset)
    value match {
      case null => throw new DataException(s"column '${input.name}' holds a null: ${Expressions.Mend}")
      case bytes: Array[Byte] =>
        input.checkLength(bytes.length)
        for ((byte, index) <- bytes.zipWithIndex) to.put(at + index, byte)
      case items: scala.collection.Seq[_] =>
        input.checkLength(items.length)
        val size = TensorRows.elementSize(input.dtype)
        for ((item, index) <- items.iterator.zipWithIndex) putNumber(item, input, to, at + index * size)
      case number => putNumber(number, input, to, at)
    }
  }

  private def putNumber(value: Any, input: RowInput, to: ByteBuffer, at: Int): Unit = value match {
    case number: Float  => to.putFloat(at, number)
    case number: Double => to.putDouble(at, number)
    case number: Long   => to.putLong(at, number)
    case flag: Boolean  => to.put(at, (if (flag) 1 else 0).toByte)
    case _ =>
      throw new DataException(
        s"column '${input.name}' holds an array with a null in it: ${Expressions.Mend} before transform"
      )
  }
}

private[flambeau] object RowReader {

  /** What reads the columns of these tensors, one tensor after another. */
  def of(tensors: Seq[TensorColumns]): RowReader = RowReader(for {
    (tensor, input) <- tensors.zipWithIndex
    (name, index) <- tensor.columns.zipWithIndex
  } yield {
    val numElements = if (tensor.columns.length > 1) 1 else tensor.numElements
    RowInput(name, input, index * TensorRows.elementSize(tensor.dtype), tensor.dtype, numElements)
  })
}
