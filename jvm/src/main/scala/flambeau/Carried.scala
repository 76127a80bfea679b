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
    case text: StringType => Carried(BinaryType, _.cast(BinaryType), _.cast(text))
    case DateType         => Carried(IntegerType, unix_date, date_from_unix_date)
    case TimestampType    => Carried(LongType, unix_micros, timestamp_micros)
    case MapType(key, value, valueContainsNull) =>
      val entry = StructType(Seq(
        StructField("key", key, nullable = false),
        StructField("value", value, valueContainsNull)
      ))
      Carried(ArrayType(entry, containsNull = false), map_entries, map_from_entries)
    // The JVM's objects know days to seconds and years to months only.
    case part: DayTimeIntervalType =>
      Carried(DayTimeIntervalType(), _.cast(DayTimeIntervalType()), _.cast(part))
    case part: YearMonthIntervalType =>
      Carried(YearMonthIntervalType(), _.cast(YearMonthIntervalType()), _.cast(part))
    case other => Carried(other, identity, identity)
  }
}
