package flambeau.internal.scoring

import java.nio.ByteBuffer

import org.apache.spark.sql.catalyst.expressions.SpecializedGetters
import org.apache.spark.sql.catalyst.util.ArrayData
import org.apache.spark.sql.types._

/** How a column's numbers become the elements of a tensor: cast as Spark casts them, with no object made for each. */
private[flambeau] sealed abstract class Numbers(val size: Int) extends Serializable {

  /** Puts one number, which is not null, at a place in the buffer. */
  def put(from: SpecializedGetters, ordinal: Int, to: ByteBuffer, at: Int): Unit

  /** Puts all numbers of an array without nulls, the first at a place and each `step` bytes after the one before. */
  def putAll(values: ArrayData, to: ByteBuffer, at: Int, step: Int): Unit = {
    var index = 0
    while (index < values.numElements()) {
      put(values, index, to, at + index * step)
      index += 1
    }
  }
}

private[flambeau] object Numbers {

  /** From a column, or an array, of this type to a tensor of this one; none where Spark has to check or to compute. */
  def apply(source: DataType, dtype: String): Option[Numbers] = (source, dtype) match {
    case (FloatType, "float32")            => Some(FloatToFloat)
    case (DoubleType, "float32")           => Some(DoubleToFloat)
    case (FloatType, "float64")            => Some(FloatToDouble)
    case (DoubleType, "float64")           => Some(DoubleToDouble)
    case (_, "float32") if isWhole(source) => Some(WholeToFloat(source))
    case (_, "float64") if isWhole(source) => Some(WholeToDouble(source))
    case (_, "int64") if isWhole(source)   => Some(WholeToLong(source))
    case (_, "bool") if isWhole(source)    => Some(WholeToBoolean(source))
    case _                                 => None
  }

  private def isWhole(source: DataType): Boolean = source match {
    case BooleanType | ByteType | ShortType | IntegerType | LongType => true
    case _                                                           => false
  }

  private case object FloatToFloat extends Numbers(4) {
    override def put(from: SpecializedGetters, ordinal: Int, to: ByteBuffer, at: Int): Unit =
      to.putFloat(at, from.getFloat(ordinal))

    override def putAll(values: ArrayData, to: ByteBuffer, at: Int, step: Int): Unit = {
      val floats = values.toFloatArray()
      if (step == size) from(to, at).asFloatBuffer().put(floats)
      else {
        var place = at
        var index = 0
        while (index < floats.length) {
          to.putFloat(place, floats(index))
          place += step
          index += 1
        }
      }
    }

    /** The memory from a place on. */
    private def from(buffer: ByteBuffer, at: Int): ByteBuffer = {
      val rest = buffer.duplicate().order(buffer.order())
      rest.position(at)
      rest
    }
  }

  private case object DoubleToFloat extends Numbers(4) {
    override def put(from: SpecializedGetters, ordinal: Int, to: ByteBuffer, at: Int): Unit =
      to.putFloat(at, from.getDouble(ordinal).toFloat)

    override def putAll(values: ArrayData, to: ByteBuffer, at: Int, step: Int): Unit = {
      val doubles = values.toDoubleArray()
      var place = at
      var index = 0
      while (index < doubles.length) {
        to.putFloat(place, doubles(index).toFloat)
        place += step
        index += 1
      }
    }
  }

  private case object FloatToDouble extends Numbers(8) {
    override def put(from: SpecializedGetters, ordinal: Int, to: ByteBuffer, at: Int): Unit =
      to.putDouble(at, from.getFloat(ordinal).toDouble)
  }

  private case object DoubleToDouble extends Numbers(8) {
    override def put(from: SpecializedGetters, ordinal: Int, to: ByteBuffer, at: Int): Unit =
      to.putDouble(at, from.getDouble(ordinal))
  }

  private final case class WholeToFloat(source: DataType) extends Numbers(4) {
    private val read = Whole(source)
    override def put(from: SpecializedGetters, ordinal: Int, to: ByteBuffer, at: Int): Unit =
      to.putFloat(at, read(from, ordinal).toFloat)
  }

  private final case class WholeToDouble(source: DataType) extends Numbers(8) {
    private val read = Whole(source)
    override def put(from: SpecializedGetters, ordinal: Int, to: ByteBuffer, at: Int): Unit =
      to.putDouble(at, read(from, ordinal).toDouble)
  }

  private final case class WholeToLong(source: DataType) extends Numbers(8) {
    private val read = Whole(source)
    override def put(from: SpecializedGetters, ordinal: Int, to: ByteBuffer, at: Int): Unit =
      to.putLong(at, read(from, ordinal))
  }

  private final case class WholeToBoolean(source: DataType) extends Numbers(1) {
    private val read = Whole(source)
    override def put(from: SpecializedGetters, ordinal: Int, to: ByteBuffer, at: Int): Unit =
      to.put(at, if (read(from, ordinal) != 0) 1.toByte else 0.toByte)
  }

  /** Reads a whole number or a boolean of some width. */
  private final case class Whole(source: DataType) {
    private val width = source match {
      case BooleanType => 0
      case ByteType    => 1
      case ShortType   => 2
      case IntegerType => 4
      case LongType    => 8
    }

    def apply(from: SpecializedGetters, ordinal: Int): Long = width match {
      case 0 => if (from.getBoolean(ordinal)) 1 else 0
      case 1 => from.getByte(ordinal).toLong
      case 2 => from.getShort(ordinal).toLong
      case 4 => from.getInt(ordinal).toLong
      case 8 => from.getLong(ordinal)
    }
  }
}
