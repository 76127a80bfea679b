package flambeau.internal.rows

import java.util.Random

import flambeau.DataException
import flambeau.internal.rows.Expressions.quoted
import org.apache.spark.sql.functions._
import org.apache.spark.sql.types._
import org.apache.spark.sql.{Column, DataFrame, Row}
import org.apache.spark.util.random.BernoulliCellSampler

/** The numbers of the rows' folds, from 0. */
private[flambeau] object Folds {

  /** `df` with the numbers in a column of that name, drawn as `MLUtils.kFold` draws them from this seed. */
  def drawn(df: DataFrame, name: String, count: Int, seed: Long): DataFrame = {
    val rows = df.rdd
    // As PartitionwiseSampledRDD has them.
    val random = new Random(seed)
    val seeds = Array.fill(rows.getNumPartitions)(random.nextLong())
    val numbered = rows.mapPartitionsWithIndex { (partition, part) =>
      val samplers = (0 until count).map { fold =>
        val sampler = new BernoulliCellSampler[Row](fold / count.toFloat, (fold + 1) / count.toFloat)
        sampler.setSeed(seeds(partition))
        sampler
      }
      // All draw the same number, which is in the range of one.
      part.map(row => Row.fromSeq(row.toSeq :+ samplers.map(_.sample()).indexOf(1)))
    }
    df.sparkSession.createDataFrame(numbered, df.schema.add(name, IntegerType))
  }

  /** The numbers that a column of that name holds; another value is refused. Throws DataException for a column of another type. */
  def of(schema: StructType, name: String, count: Int): Column = {
    val allowed = s"foldCol names a column of whole numbers from 0 to ${count - 1} (numFolds is $count)"
    val dtype = Columns.findField(schema, name, "fold").dataType
    if (!Seq(ByteType, ShortType, IntegerType, LongType).contains(dtype))
      throw new DataException(s"column '$name' is ${Columns.typeName(dtype)}; $allowed: cast it")
    val fold = col(quoted(name))
    val held = coalesce(fold.cast("string"), lit("a null"))
    val refusal =
      concat(lit(s"${Refusal.Begin}column '$name' holds "), held, lit(s": $allowed${Refusal.End}"))
    when(fold.between(0, count - 1), fold.cast("int")).otherwise(raise_error(refusal))
  }
}
