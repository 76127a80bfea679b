package flambeau.internal.scoring

import java.nio.ByteBuffer

import flambeau.TensorColumns
import flambeau.jni.{InputBatch, TensorRows}
import org.apache.spark.sql.Row

/** Reads rows of values that are ready for tensors, in the order of these places.
  *
  * @param numInputs
  *   how many of the tensors are inputs; labels and a weight come after them
  */
private[flambeau] final case class RowReader(places: Seq[InputPlace], numInputs: Int) {

  /** Adds a row to the batch; `first` is the place of the first column in it. */
  def read(row: Row, first: Int, batch: InputBatch): Unit = {
    batch.makeRoom(1)
    for ((place, index) <- places.zipWithIndex) put(row.get(first + index), place, batch)
    batch.addRows(1)
  }

  private def put(value: Any, place: InputPlace, batch: InputBatch): Unit = {
    val (to, at) = (batch.buffer(place.input), batch.end(place.input) + place.offset)
    value match {
      case null => InputRefusal.ofNull(place.name)
      case bytes: Array[Byte] =>
        checkLength(bytes.length, place)
        for ((byte, index) <- bytes.zipWithIndex) to.put(at + index, byte)
      case items: scala.collection.Seq[_] =>
        checkLength(items.length, place)
        val size = TensorRows.elementSize(place.tensor.dtype)
        for ((item, index) <- items.iterator.zipWithIndex) putNumber(item, place, to, at + index * size)
      case number => putNumber(number, place, to, at)
    }
  }

  private def checkLength(length: Int, place: InputPlace): Unit =
    if (place.input < numInputs) InputRefusal.unlessTrained(place.name, length, place.numElements)
    else InputRefusal.unlessFirst(place.name, length, place.numElements)

  private def putNumber(value: Any, place: InputPlace, to: ByteBuffer, at: Int): Unit = value match {
    case number: Float  => to.putFloat(at, number)
    case number: Double => to.putDouble(at, number)
    case number: Long   => to.putLong(at, number)
    case flag: Boolean  => to.put(at, (if (flag) 1 else 0).toByte)
    case _              => InputRefusal.ofNullInside(place.name)
  }
}

private[flambeau] object RowReader {

  /** What reads the columns of these inputs, and then those of the labels and the weight. */
  def of(inputs: Seq[TensorColumns], targets: Seq[TensorColumns] = Nil): RowReader =
    RowReader(InputPlace.of(inputs ++ targets), inputs.length)
}
