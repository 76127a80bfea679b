package flambeau

import org.apache.spark.sql.Column
import org.apache.spark.sql.functions._
import org.apache.spark.sql.types._

/** How a column that a model does not read goes through the JVM's objects and back, to the bit and without being decoded
  * where that can be: text as its bytes, times as numbers, maps as their entries in order.
  *
  * @param pack
  *   from the column to what is carried
  * @param unpack
  *   back again
  */
private[flambeau] final case class Carried(dtype: DataType, pack: Column => Column, unpack: Column => Column)

private[flambeau] object Carried {
  def apply(dtype: DataType): Carried = dtype match {
    case StringType    => Carried(BinaryType, _.cast(BinaryType), _.cast(StringType))
    case DateType      => Carried(IntegerType, unix_date, date_from_unix_date)
    case TimestampType => Carried(LongType, unix_micros, timestamp_micros)
    case MapType(key, value, valueContainsNull) =>
      val entry = StructType(Seq(StructField("key", key, nullable = false), StructField("value", value, valueContainsNull)))
      Carried(ArrayType(entry, containsNull = false), map_entries, map_from_entries)
    case other => Carried(other, identity, identity)
  }
}
