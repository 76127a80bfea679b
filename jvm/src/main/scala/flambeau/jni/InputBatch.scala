package flambeau.jni

import java.nio.{ByteBuffer, ByteOrder}

/** Rows on their way to a program: one buffer of native memory for each input, row after row, used again for the next
  * rows. The buffers grow with the rows that there are. One thread uses a batch.
  *
  * The buffers' element types are the inputs' dtypes; `bool` and `uint8` take a byte an element.
  *
  * @param capacity
  *   the most rows that it takes
  */
private[flambeau] final class InputBatch private[jni] (inputs: Seq[TensorRows], val capacity: Int) {
  private val bytes: Array[Int] = inputs.map(input => Math.toIntExact(input.rowBytes)).toArray
  private var room = capacity.min(InputBatch.FirstRows)

  private[jni] var buffers: Array[ByteBuffer] = bytes.map(size => InputBatch.allocate(size, room))

  private var rows = 0

  /** Rows in the batch. */
  def numRows: Int = rows

  /** Whether no more rows fit. */
  def isFull: Boolean = rows == capacity

  /** Makes room for further rows, no more than `capacity` in all, before they are written. */
  def makeRoom(count: Int): Unit = if (rows + count > room) {
    room = (rows + count).max((room * 2L).min(capacity.toLong).toInt)
    buffers = buffers.zip(bytes).map { case (full, size) =>
      val larger = InputBatch.allocate(size, room)
      val written = full.duplicate()
      written.limit(rows * size)
      larger.duplicate().put(written)
      larger
    }
  }

  /** The memory of an input, to be written to by absolute places; another one after `makeRoom`. */
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

  /** Rows that a batch has room for at first. */
  private val FirstRows = 64

  private def allocate(rowBytes: Int, numRows: Int): ByteBuffer =
    ByteBuffer.allocateDirect(Math.multiplyExact(rowBytes, numRows)).order(ByteOrder.nativeOrder())
}
