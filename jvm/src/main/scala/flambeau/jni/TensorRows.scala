package flambeau.jni

/** A tensor's rows: its name where it has one, its dtype (`float32`, `float64`, `int64`, `bool`, `uint8`; outputs may have
  * others of torch's) and the shape of one row.
  */
private[flambeau] final case class TensorRows(name: Option[String], dtype: String, shape: Seq[Long]) {

  /** Elements of one row. */
  def numElements: Int = Math.toIntExact(shape.product)

  private[jni] def json: Map[String, Any] = Map("dtype" -> dtype, "shape" -> shape)

  /** Bytes of one row of an input. */
  private[jni] def rowBytes: Long = numElements.toLong * TensorRows.elementSize(dtype)
}

private[flambeau] object TensorRows {

  /** Bytes of an element of an input. */
  private[flambeau] def elementSize(dtype: String): Int = dtype match {
    case "float32"           => 4
    case "float64" | "int64" => 8
    case "bool" | "uint8"    => 1
  }
}
