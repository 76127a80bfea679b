package org.apache.spark.sql.flambeau

import org.apache.spark.sql.{Column, DataFrame}
import org.apache.spark.sql.catalyst.expressions.Expression
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.classic

/** Between DataFrames and their logical plans on Spark 4, which keeps these ways to its own packages. */
object Plans {

  /** The analyzed plan of a DataFrame. */
  def of(df: DataFrame): LogicalPlan = classicOf(df).logicalPlan

  /** Its optimized plan. */
  def optimized(df: DataFrame): LogicalPlan = classicOf(df).queryExecution.optimizedPlan

  /** A plan as a DataFrame of the same session as `df`. */
  def toFrame(df: DataFrame, plan: LogicalPlan): DataFrame =
    classic.Dataset.ofRows(classicOf(df).sparkSession, plan)

  /** An expression as a column. */
  def column(expression: Expression): Column = classic.ExpressionUtils.column(expression)

  private def classicOf(df: DataFrame) = df.asInstanceOf[classic.Dataset[_]]
}
