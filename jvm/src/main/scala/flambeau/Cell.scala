package flambeau

import java.util.Arrays

import org.apache.spark.ml.linalg.{SQLDataTypes, Vectors}
import org.apache.spark.sql.RowFactory
import org.apache.spark.sql.types._

/** Cuts the value of an output's column for one row out of a batch's results. */
private[flambeau] sealed trait Cell extends Serializable {

  /** @param results
    *   what the scorer gave: an array for each output, row after row
    * @param output
    *   which of them
    */
  def value(results: Array[AnyRef], output: Int, row: Int): AnyRef
}

private[flambeau] object Cell {

  /** The cell of a column of this type. */
  def apply(dtype: DataType, output: OutputSpec): Cell = dtype match {
    case DoubleType                                  => Number
    case vector if vector == SQLDataTypes.VectorType => VectorCell(output.numClasses)
    case _: StructType                               => StructCell(output.tensors.map(of))
    case _                                           => of(output.tensors.head)
  }

  private def of(tensor: OutputTensor): Cell = if (tensor.isScalar) Number else ArrayCell(tensor.shape.toList)

  private case object Number extends Cell {
    override def value(results: Array[AnyRef], output: Int, row: Int): AnyRef =
      Double.box(results(output).asInstanceOf[Array[Double]](row))
  }

  /** A classifier's vector: one value for each class. */
  private final case class VectorCell(numClasses: Int) extends Cell {
    override def value(results: Array[AnyRef], output: Int, row: Int): AnyRef = {
      val values = results(output).asInstanceOf[Array[Double]]
      Vectors.dense(Arrays.copyOfRange(values, row * numClasses, (row + 1) * numClasses))
    }
  }

  private final case class ArrayCell(shape: List[Int]) extends Cell {
    private val size = shape.product

    override def value(results: Array[AnyRef], output: Int, row: Int): AnyRef =
      cut(results(output), row * size, shape)

    private def cut(values: AnyRef, start: Int, sizes: List[Int]): AnyRef = sizes match {
      case last :: Nil => slice(values, start, start + last)
      case count :: inner =>
        val step = inner.product
        Array.tabulate[AnyRef](count)(index => cut(values, start + index * step, inner))
      case Nil => values
    }

    private def slice(values: AnyRef, start: Int, stop: Int): AnyRef = values match {
      case floats: Array[Float]   => Arrays.copyOfRange(floats, start, stop)
      case doubles: Array[Double] => Arrays.copyOfRange(doubles, start, stop)
      case longs: Array[Long]     => Arrays.copyOfRange(longs, start, stop)
      case flags: Array[Boolean]  => Arrays.copyOfRange(flags, start, stop)
    }
  }

  private final case class StructCell(fields: Seq[Cell]) extends Cell {
    override def value(results: Array[AnyRef], output: Int, row: Int): AnyRef =
      RowFactory.create(fields.zipWithIndex.map { case (cell, index) => cell.value(results, index, row) }: _*)
  }
}
