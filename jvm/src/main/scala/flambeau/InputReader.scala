package flambeau

import flambeau.jni.InputBatch
import org.apache.spark.ml.linalg.{DenseVector, SparseVector, Vector}
import org.apache.spark.mllib.linalg.{Vector => OldVector}
import org.apache.spark.sql.Row

/** Puts a row's values of one input into a batch. */
private[flambeau] sealed abstract class InputReader(tensor: TensorColumns) extends Serializable {
  protected val numElements: Int = tensor.numElements

  /** The column, of an input that is one column. */
  def column: String = tensor.columns.head

  protected final def checkLength(length: Int): Unit =
    if (length != numElements)
      throw new DataException(
        s"column '$column' holds an array of $length, where $numElements were trained on: " +
          "every row's array must have that length"
      )
}

/** Reads an array of primitives, which Spark made of the input's columns. */
private[flambeau] final class ArrayReader(tensor: TensorColumns, val holdsNulls: Boolean)
    extends InputReader(tensor) {

  def read(values: Any, batch: InputBatch, input: Int): Unit = {
    checkLength(java.lang.reflect.Array.getLength(values))
    values match {
      case floats: Array[Float]   => batch.putFloats(input, floats)
      case longs: Array[Long]     => batch.putLongs(input, longs)
      case doubles: Array[Double] => batch.putDoubles(input, doubles)
      case bytes: Array[Byte]     => batch.putBytes(input, bytes)
      case flags: Array[Boolean] => batch.putBytes(input, flags.map(flag => if (flag) 1.toByte else 0.toByte))
    }
  }
}

/** Reads a vector of the row, into a tensor of floats. */
private[flambeau] final class VectorReader(tensor: TensorColumns, place: Int) extends InputReader(tensor) {
  private val wide = tensor.dtype == "float64"

  def read(row: Row, batch: InputBatch, input: Int): Unit = {
    val vector = row.get(place) match {
      case vector: Vector => vector
      case old: OldVector => old.asML
      case _ =>
        throw new DataException(s"column '$column' holds a null: ${Expressions.Mend}")
    }
    checkLength(vector.size)
    vector match {
      case dense: DenseVector   => put(dense.values, batch, input)
      case sparse: SparseVector => put(sparse.toArray, batch, input)
    }
  }

  private def put(values: Array[Double], batch: InputBatch, input: Int): Unit =
    if (wide) batch.putDoubles(input, values)
    else {
      val buffer = batch.buffer(input)
      var index = 0
      while (index < values.length) {
        buffer.putFloat(values(index).toFloat)
        index += 1
      }
    }
}
