package flambeau.internal.scoring

import flambeau.TensorColumns
import flambeau.jni.TensorRows
import org.apache.spark.sql.types.DataType

/** Where a column's values go: the number of the input that it is a part of, and how many bytes after the row's first. */
private[flambeau] final case class InputPlace(name: String, tensor: TensorColumns, input: Int, offset: Int) {

  /** How many numbers it holds: several columns of a tensor hold one each, one holds all. */
  def numElements: Int = if (tensor.columns.length > 1) 1 else tensor.numElements

  /** The column as it is read where it has this type; none where it has to be converted first. */
  def column(dtype: DataType): Option[InputColumn] =
    InputReader(name, dtype, tensor).map(InputColumn(input, offset, _))
}

private[flambeau] object InputPlace {

  /** The places of these tensors' columns, one tensor after another. */
  def of(tensors: Seq[TensorColumns]): Seq[InputPlace] = for {
    (tensor, input) <- tensors.zipWithIndex
    (name, index) <- tensor.columns.zipWithIndex
  } yield InputPlace(name, tensor, input, index * TensorRows.elementSize(tensor.dtype))
}
