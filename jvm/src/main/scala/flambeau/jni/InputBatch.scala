package flambeau.jni

import java.nio.{ByteBuffer, ByteOrder}

/** Rows on their way to a program: one buffer of native memory for each input, filled row by row and used again for the next
  * rows. One thread uses a batch.
  *
  * The buffers' element types are the inputs' dtypes; `bool` and `uint8` take a byte an element.
  */
final class InputBatch private[jni] (inputs: Seq[TensorRows], val capacity: Int) {

  private[jni] val buffers: Array[ByteBuffer] = inputs.map { input =>
    val bytes = Math.multiplyExact(
      Math.multiplyExact(input.numElements, InputBatch.elementSize(input.dtype)),
      capacity
    )
    ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder())
  }.toArray

  private var rows = 0

  /** Rows in the batch. */
  def numRows: Int = rows

  /** Whether no more rows fit. */
  def isFull: Boolean = rows == capacity

  /** The memory of an input, positioned after what was put: `putFloat`, `putLong`, ... append the row's elements. */
  def buffer(input: Int): ByteBuffer = buffers(input)

  /** Appends floats to a `float32` input. */
  def putFloats(input: Int, values: Array[Float]): Unit = {
    val buffer = buffers(input)
    buffer.asFloatBuffer().put(values)
    buffer.position(buffer.position() + values.length * java.lang.Float.BYTES)
  }

  /** Appends doubles to a `float64` input. */
  def putDoubles(input: Int, values: Array[Double]): Unit = {
    val buffer = buffers(input)
    buffer.asDoubleBuffer().put(values)
    buffer.position(buffer.position() + values.length * java.lang.Double.BYTES)
  }

  /** Appends whole numbers to an `int64` input. */
  def putLongs(input: Int, values: Array[Long]): Unit = {
    val buffer = buffers(input)
    buffer.asLongBuffer().put(values)
    buffer.position(buffer.position() + values.length * java.lang.Long.BYTES)
  }

  /** Appends bytes to a `uint8` or `bool` input. */
  def putBytes(input: Int, values: Array[Byte]): Unit = buffers(input).put(values)

  /** Ends a row: every input has one row's elements more than before. */
  def endRow(): Unit = rows += 1

  /** Forgets all rows. */
  def clear(): Unit = {
    rows = 0
    buffers.foreach(_.clear())
  }
}

private object InputBatch {

  private def elementSize(dtype: String): Int = dtype match {
    case "float32"           => 4
    case "float64" | "int64" => 8
    case "bool" | "uint8"    => 1
  }
}
