package org.apache.spark.ml.tuning.flambeau

import org.apache.spark.sql.SparkSession

/** What Spark 4 reads saved stages with. */
private[flambeau] object ReadingContext {
  def of(spark: SparkSession): SparkSession = spark
}
