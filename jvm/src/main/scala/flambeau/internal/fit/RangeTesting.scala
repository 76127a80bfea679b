package flambeau.internal.fit

import flambeau.RangeTest
import flambeau.internal.rows.Rows
import flambeau.internal.util.Json
import org.apache.spark.sql.SparkSession

/** Learning rate range tests: fits that grow their rate from step to step, and leave no model. */
private[flambeau] object RangeTesting {

  /** As many as its steps take. */
  private val MostEpochs = 1000000

  /** Tests the rates from `minRate` to `maxRate`, in at most so many steps. Throws what a fit does, and ParamException for
    * what is no range, before any Spark job starts. Waits as a fit does; an interrupt of the thread cancels it.
    */
  def run(
      estimator: Trainable,
      spark: SparkSession,
      rows: Rows,
      minRate: Double,
      maxRate: Double,
      numSteps: Int
  ): RangeTest = {
    val asked = Json.obj().put("minRate", minRate).put("maxRate", maxRate).put("numSteps", numSteps)
    val tried = Trials.of(estimator) { one =>
      one.clear(one.emaDecay)
      one.setSyncEvery(1).setEpochs(MostEpochs): Unit
    }
    val found = Fit.rangeTest(tried, spark, asked).tested(rows)
    def each(name: String): Seq[Double] = Json.items(found.get("steps")).map(_.get(name).asDouble)
    val suggested = Option(found.get("suggestion")).filterNot(_.isNull).map(_.asDouble)
    RangeTest(each("rate"), each("loss"), each("smoothed"), suggested)
  }
}
