package org.apache.spark.ml.tuning.flambeau

import org.apache.spark.SparkContext
import org.apache.spark.sql.SparkSession

/** What Spark 3.5 reads saved stages with. */
private[flambeau] object ReadingContext {
  def of(spark: SparkSession): SparkContext = spark.sparkContext
}
