package flambeau.jni

import java.nio.{ByteBuffer, ByteOrder}

/** Rows on their way to a program: one buffer of native memory for each input, row after row, used again for the next
  * rows. One thread uses a batch.
  *
  * The buffers' element types are the inputs' dtypes; `bool` and `uint8` take a byte an element.
  */
final class InputBatch private[jni] (inputs: Seq[TensorRows], val capacity: Int) {
  private val bytes: Array[Int] = inputs.map { input =>
    Math.multiplyExact(input.numElements, InputBatch.elementSize(input.dtype))
  }.toArray

  private[jni] val buffers: Array[ByteBuffer] = bytes.map { size =>
    ByteBuffer.allocateDirect(Math.multiplyExact(size, capacity)).order(ByteOrder.nativeOrder())
  }

  private var rows = 0

  /** Rows in the batch. */
  def numRows: Int = rows

  /** Whether no more rows fit. */
  def isFull: Boolean = rows == capacity

  /** The memory of an input, to be written to by absolute places. */
  def buffer(input: Int): ByteBuffer = buffers(input)

  /** Bytes of one row of an input. */
  def rowBytes(input: Int): Int = bytes(input)

  /** The place in an input's memory where the next row begins. */
  def end(input: Int): Int = rows * bytes(input)

  /** Counts rows that were written to every input. */
  def addRows(count: Int): Unit = rows += count

  /** Forgets all rows. */
  def clear(): Unit = rows = 0
}

private[flambeau] object InputBatch {

  /** Bytes of an element. */
  def elementSize(dtype: String): Int = dtype match {
    case "float32"           => 4
    case "float64" | "int64" => 8
    case "bool" | "uint8"    => 1
  }
}
