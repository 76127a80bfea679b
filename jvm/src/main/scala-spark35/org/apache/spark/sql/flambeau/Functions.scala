package org.apache.spark.sql.flambeau

import org.apache.spark.sql.{Column, SparkSession}
import org.apache.spark.sql.catalyst.expressions.Expression
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.rules.Rule

/** What functions of SQL need of Spark 3.5, which keeps these ways to its own packages. Apart from `Plans`, so that `transform` works
  * in a Spark that lacks them.
  */
object Functions {

  /** Has the session's SQL know a function by that name, made of its arguments. */
  def register(spark: SparkSession, name: String)(make: Seq[Expression] => Expression): Unit =
    spark.sessionState.functionRegistry.createOrReplaceTempFunction(name, make, "scala_udf")

  /** Has the session optimize by a rule too, among its own first ones and so before it looks at partitions; those rules of
    * `spark.experimental` come after that. Sessions that share its extensions get it with it.
    */
  def optimizeBy(spark: SparkSession, rule: Rule[LogicalPlan]): Unit = synchronized {
    val extensions = spark.extensions
    if (!extensions.buildOptimizerRules(spark).contains(rule)) extensions.injectOptimizerRule(_ => rule)
  }

  /** A column as an expression, which may have to be resolved yet. */
  def expression(spark: SparkSession, column: Column): Expression = column.expr
}
