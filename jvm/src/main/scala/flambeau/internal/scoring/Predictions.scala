package flambeau.internal.scoring

import flambeau.internal.model.{OutputColumn, OutputSpec, OutputTensor}
import flambeau.internal.rows.Columns
import org.apache.spark.sql.execution.vectorized.{OnHeapColumnVector, WritableColumnVector}
import org.apache.spark.sql.types._

/** The outputs' columns, for up to `capacity` rows at a time; written over for the next rows.
  *
  * @param columns
  *   the type and the contents of each
  */
private[flambeau] final class Predictions(columns: Seq[(DataType, OutputContents)], val capacity: Int) {

  /** One vector for each column. */
  val vectors: Array[WritableColumnVector] = columns.map { case (dtype, column) =>
    val vector = new OnHeapColumnVector(capacity, dtype)
    column.lay(vector, capacity)
    vector
  }.toArray

  private val contents = columns.map(_._2).toArray

  /** Writes rows.
    *
    * @param start
    *   the first of them
    * @param results
    *   what the scorer gave: an array for each output, row after row
    */
  def put(start: Int, count: Int, results: Array[AnyRef]): Unit = {
    var index = 0
    while (index < vectors.length) {
      contents(index).put(vectors(index), start, count, results, index)
      index += 1
    }
  }
}

/** What a column of outputs holds, and how a scorer's results get there. */
private[flambeau] sealed trait OutputContents extends Serializable {

  /** Lays out what is the same for all contents, such as where each row's array begins. */
  def lay(vector: WritableColumnVector, numRows: Int): Unit

  /** Writes rows from `start` on out of the results of this output. */
  def put(vector: WritableColumnVector, start: Int, count: Int, results: Array[AnyRef], output: Int): Unit
}

private[flambeau] object OutputContents {

  /** The contents of a column. */
  def apply(column: OutputColumn, output: OutputSpec): OutputContents =
    (column.tensor, column.field.dataType) match {
      case (Some(place), _)                           => TensorColumn(place, of(output.tensors(place)))
      case (None, StructType(_))                      => StructColumn(output.tensors.map(of))
      case (None, vector) if Columns.isVector(vector) => VectorColumn(output.numClasses)
      case _                                          => NumberColumn
    }

  /** A classifier's numbers for each class as an array. */
  def ofClasses(output: OutputSpec): OutputContents = ArrayColumn(List(output.numClasses))

  private def of(tensor: OutputTensor): OutputContents =
    if (tensor.isScalar) NumberColumn else ArrayColumn(tensor.shape.toList)

  private case object NumberColumn extends OutputContents {
    override def lay(vector: WritableColumnVector, numRows: Int): Unit = ()

    override def put(
        vector: WritableColumnVector,
        start: Int,
        count: Int,
        results: Array[AnyRef],
        output: Int
    ): Unit = putElements(vector, start, count, results(output))
  }

  /** (Nested) arrays of these sizes. */
  private final case class ArrayColumn(sizes: List[Int]) extends OutputContents {
    private val numElements = sizes.product

    override def lay(vector: WritableColumnVector, numRows: Int): Unit = layArrays(vector, numRows, sizes)

    override def put(
        vector: WritableColumnVector,
        start: Int,
        count: Int,
        results: Array[AnyRef],
        output: Int
    ): Unit = {
      val elements = sizes.foldLeft(vector)((outer, _) => outer.arrayData())
      putElements(elements, start * numElements, count * numElements, results(output))
    }
  }

  /** A classifier's vector: one value for each class. */
  private final case class VectorColumn(numClasses: Int) extends OutputContents {
    override def lay(vector: WritableColumnVector, numRows: Int): Unit = {
      vector.getChild(VectorReader.Kind).putBytes(0, numRows, VectorReader.Dense)
      vector.getChild(VectorReader.Size).putNulls(0, numRows)
      vector.getChild(VectorReader.Indices).putNulls(0, numRows)
      layArrays(vector.getChild(VectorReader.Values), numRows, List(numClasses))
    }

    override def put(
        vector: WritableColumnVector,
        start: Int,
        count: Int,
        results: Array[AnyRef],
        output: Int
    ): Unit = {
      val values = vector.getChild(VectorReader.Values).arrayData()
      putElements(values, start * numClasses, count * numClasses, results(output))
    }
  }

  /** One of the tensors, whichever of their columns there are. */
  private final case class TensorColumn(place: Int, tensor: OutputContents) extends OutputContents {
    override def lay(vector: WritableColumnVector, numRows: Int): Unit = tensor.lay(vector, numRows)

    override def put(
        vector: WritableColumnVector,
        start: Int,
        count: Int,
        results: Array[AnyRef],
        output: Int
    ): Unit = tensor.put(vector, start, count, results, place)
  }

  /** Several tensors, of which each has its own results. */
  private final case class StructColumn(fields: Seq[OutputContents]) extends OutputContents {
    override def lay(vector: WritableColumnVector, numRows: Int): Unit =
      for ((field, index) <- fields.zipWithIndex) field.lay(vector.getChild(index), numRows)

    override def put(
        vector: WritableColumnVector,
        start: Int,
        count: Int,
        results: Array[AnyRef],
        output: Int
    ): Unit =
      for ((field, index) <- fields.zipWithIndex)
        field.put(vector.getChild(index), start, count, results, index)
  }

  /** Arrays of these sizes, one inside the other, that lie one after another. */
  private def layArrays(vector: WritableColumnVector, numArrays: Int, sizes: List[Int]): Unit =
    for (size <- sizes.headOption) {
      val numElements = Math.multiplyExact(numArrays, size)
      vector.arrayData().reserve(numElements)
      for (index <- 0 until numArrays) vector.putArray(index, index * size, size)
      layArrays(vector.arrayData(), numElements, sizes.tail)
    }

  private def putElements(vector: WritableColumnVector, start: Int, count: Int, results: AnyRef): Unit =
    results match {
      case doubles: Array[Double] => vector.putDoubles(start, count, doubles, 0)
      case floats: Array[Float]   => vector.putFloats(start, count, floats, 0)
      case longs: Array[Long]     => vector.putLongs(start, count, longs, 0)
      case flags: Array[Boolean] =>
        for (index <- 0 until count) vector.putBoolean(start + index, flags(index))
    }
}
