package org.apache.spark.sql.flambeau

import org.apache.spark.sql.{Column, DataFrame, Dataset}
import org.apache.spark.sql.catalyst.expressions.Expression
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan

/** Between DataFrames and their logical plans on Spark 3.5, which keeps these ways to its own packages. */
object Plans {

  /** The analyzed plan of a DataFrame. */
  def of(df: DataFrame): LogicalPlan = df.logicalPlan

  /** Its optimized plan. */
  def optimized(df: DataFrame): LogicalPlan = df.queryExecution.optimizedPlan

  /** A plan as a DataFrame of the same session as `df`. */
  def toFrame(df: DataFrame, plan: LogicalPlan): DataFrame = Dataset.ofRows(df.sparkSession, plan)

  /** An expression as a column. */
  def column(expression: Expression): Column = new Column(expression)
}
