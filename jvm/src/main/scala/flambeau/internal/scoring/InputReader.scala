package flambeau.internal.scoring

import java.nio.ByteBuffer

import flambeau.TensorColumns
import flambeau.internal.rows.Columns
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters
import org.apache.spark.sql.catalyst.util.ArrayData
import org.apache.spark.sql.execution.vectorized.WritableColumnVector
import org.apache.spark.sql.types._
import org.apache.spark.sql.vectorized.{ColumnVector, ColumnarArray}

/** Reads a column into the memory of an input, from rows or from columns of a batch.
  *
  * Throws DataException that names the column for a null, and for an array of another length than was trained on.
  */
private[flambeau] sealed abstract class InputReader extends Serializable {

  /** The column's name, for messages. */
  def name: String

  /** Puts a value that is not null. `from` is a row, or a column as an array of its rows. */
  protected def put(from: SpecializedGetters, ordinal: Int, to: ByteBuffer, at: Int): Unit

  /** Puts a row's value at a place in the buffer. */
  final def putRow(row: SpecializedGetters, ordinal: Int, to: ByteBuffer, at: Int): Unit = {
    if (row.isNullAt(ordinal)) InputRefusal.ofNull(name)
    put(row, ordinal, to, at)
  }

  /** Puts `count` rows of a column, from `start` on: the first at a place, each `step` bytes after the one before. */
  def putColumn(column: ColumnVector, start: Int, count: Int, to: ByteBuffer, at: Int, step: Int): Unit = {
    val rows = new ColumnarArray(column, start, count)
    var index = 0
    while (index < count) {
      putRow(rows, index, to, at + index * step)
      index += 1
    }
  }
}

private[flambeau] object InputReader {

  /** The reader of a column of this type for a tensor, of which it is all or, as a single number, one element; none for a
    * column that has to be converted first.
    */
  def apply(name: String, dtype: DataType, tensor: TensorColumns): Option[InputReader] = dtype match {
    case vector if Columns.isVector(vector) =>
      if (tensor.dtype.startsWith("float")) Some(VectorReader(name, tensor.numElements, tensor.dtype))
      else None
    case ArrayType(element, _) =>
      Numbers(element, tensor.dtype).map(ArrayReader(name, tensor.numElements, _))
    case BinaryType => Some(BytesReader(name, tensor.numElements))
    case number     => Numbers(number, tensor.dtype).map(NumberReader(name, _))
  }
}

/** Reads single numbers. */
private[flambeau] final case class NumberReader(name: String, numbers: Numbers) extends InputReader {

  protected override def put(from: SpecializedGetters, ordinal: Int, to: ByteBuffer, at: Int): Unit =
    numbers.put(from, ordinal, to, at)

  override def putColumn(
      column: ColumnVector,
      start: Int,
      count: Int,
      to: ByteBuffer,
      at: Int,
      step: Int
  ): Unit = {
    if (column.hasNull && (start until start + count).exists(column.isNullAt)) InputRefusal.ofNull(name)
    numbers.putAll(new ColumnarArray(column, start, count), to, at, step)
  }
}

/** Reads arrays of numbers. */
private[flambeau] final case class ArrayReader(name: String, numElements: Int, numbers: Numbers)
    extends InputReader {

  protected override def put(from: SpecializedGetters, ordinal: Int, to: ByteBuffer, at: Int): Unit = {
    val array = from.getArray(ordinal)
    InputRefusal.unlessTrained(name, array.numElements(), numElements)
    refuseNulls(array)
    numbers.putAll(array, to, at, numbers.size)
  }

  /** Arrays of the right length that lie one after another, as Spark reads them from files, are read as one. */
  override def putColumn(
      column: ColumnVector,
      start: Int,
      count: Int,
      to: ByteBuffer,
      at: Int,
      step: Int
  ): Unit = column match {
    case vector: WritableColumnVector if isDense(vector, start, count) =>
      val all = new ColumnarArray(vector.arrayData(), vector.getArrayOffset(start), count * numElements)
      numbers.putAll(all, to, at, numbers.size)
    case _ => super.putColumn(column, start, count, to, at, step)
  }

  private def isDense(vector: WritableColumnVector, start: Int, count: Int): Boolean = {
    val first = vector.getArrayOffset(start)
    !vector.hasNull && !vector.arrayData().hasNull && (0 until count).forall { index =>
      vector.getArrayLength(start + index) == numElements &&
      vector.getArrayOffset(start + index) == first + index * numElements
    }
  }

  private def refuseNulls(array: ArrayData): Unit = {
    var index = 0
    while (index < numElements) {
      if (array.isNullAt(index)) InputRefusal.ofNullInside(name)
      index += 1
    }
  }
}

/** Reads Spark's vectors, of Spark ML and of MLlib, as [[VectorReader.Layout]] has them. */
private[flambeau] final case class VectorReader(name: String, numElements: Int, dtype: String)
    extends InputReader {
  private val numbers = Numbers(DoubleType, dtype).get

  protected override def put(from: SpecializedGetters, ordinal: Int, to: ByteBuffer, at: Int): Unit = {
    val vector = from.getStruct(ordinal, VectorReader.Layout.length)
    val values = vector.getArray(VectorReader.Values)
    if (vector.getByte(VectorReader.Kind) == VectorReader.Dense) {
      InputRefusal.unlessTrained(name, values.numElements(), numElements)
      numbers.putAll(values, to, at, numbers.size)
    } else {
      InputRefusal.unlessTrained(name, vector.getInt(VectorReader.Size), numElements)
      putSparse(vector, values, to, at)
    }
  }

  private def putSparse(vector: InternalRow, values: ArrayData, to: ByteBuffer, at: Int): Unit = {
    (at until at + numElements * numbers.size).foreach(place => to.put(place, 0.toByte))
    val indices = vector.getArray(VectorReader.Indices)
    for (index <- 0 until values.numElements())
      numbers.put(values, index, to, at + indices.getInt(index) * numbers.size)
  }
}

private[flambeau] object VectorReader {

  /** How Spark stores a vector (org.apache.spark.ml.linalg.VectorUDT): a dense one has neither size nor indices. */
  val Layout: StructType = StructType(Seq(
    StructField("type", ByteType, nullable = false),
    StructField("size", IntegerType),
    StructField("indices", ArrayType(IntegerType, containsNull = false)),
    StructField("values", ArrayType(DoubleType, containsNull = false))
  ))
  val Kind = 0
  val Size = 1
  val Indices = 2
  val Values = 3

  /** The value of `type` that means a dense vector. */
  val Dense: Byte = 1
}

/** Reads binary columns, a byte an element. */
private[flambeau] final case class BytesReader(name: String, numElements: Int) extends InputReader {

  protected override def put(from: SpecializedGetters, ordinal: Int, to: ByteBuffer, at: Int): Unit = {
    val bytes = from.getBinary(ordinal)
    InputRefusal.unlessTrained(name, bytes.length, numElements)
    val place = to.duplicate()
    place.position(at)
    place.put(bytes)
  }
}
