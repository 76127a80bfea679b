package flambeau.internal.scoring

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Attribute, AttributeSet, SortOrder}
import org.apache.spark.sql.catalyst.plans.logical.{LogicalPlan, UnaryNode}
import org.apache.spark.sql.catalyst.plans.physical.Partitioning
import org.apache.spark.sql.execution.{SparkPlan, SparkStrategy, UnaryExecNode}
import org.apache.spark.sql.execution.adaptive.QueryStageExec
import org.apache.spark.sql.execution.metric.{SQLMetric, SQLMetrics}
import org.apache.spark.sql.execution.vectorized.OnHeapColumnVector
import org.apache.spark.sql.types.{StructField, StructType}
import org.apache.spark.sql.vectorized.ColumnarBatch

/** Adds the outputs of a program to its child's columns.
  *
  * @param inputs
  *   the columns that the program reads, in the order of the task's inputs; of the child's other columns Spark reads only
  *   those that are asked for
  */
private[flambeau] final case class Score(
    task: ScoringTask,
    inputs: Seq[Attribute],
    predictions: Seq[Attribute],
    child: LogicalPlan
) extends UnaryNode {
  override def output: Seq[Attribute] = child.output ++ predictions
  override def producedAttributes: AttributeSet = AttributeSet(predictions)
  override def maxRows: Option[Long] = child.maxRows
  override def maxRowsPerPartition: Option[Long] = child.maxRowsPerPartition

  /** The same without the predictions that nobody reads, given the places of those that somebody does. */
  def keep(places: Seq[Int]): Score = copy(task = task.keep(places), predictions = places.map(predictions))

  /** What plans show; the task has much of no interest, and options of stores. */
  protected override def stringArgs: Iterator[Any] = Iterator(inputs, predictions)

  protected override def withNewChildInternal(newChild: LogicalPlan): Score = copy(child = newChild)
}

/** Runs [[Score]]: on the vectors of a child that gives batches of columns, else on its rows. */
private[flambeau] final case class ScoreExec(
    task: ScoringTask,
    inputs: Seq[Attribute],
    predictions: Seq[Attribute],
    child: SparkPlan
) extends UnaryExecNode {
  override def output: Seq[Attribute] = child.output ++ predictions
  override def producedAttributes: AttributeSet = AttributeSet(predictions)
  override def outputPartitioning: Partitioning = child.outputPartitioning
  override def outputOrdering: Seq[SortOrder] = child.outputOrdering
  override def supportsColumnar: Boolean =
    child.supportsColumnar && task.isNarrow && ScoreExec.hasKnownVectors(child)

  /** The classes of the vectors, for which Spark compiles what reads them. */
  override def vectorTypes: Option[Seq[String]] =
    child.vectorTypes.map(_ ++ predictions.map(_ => classOf[OnHeapColumnVector].getName))

  override lazy val metrics: Map[String, SQLMetric] = Map(
    "numOutputRows" -> SQLMetrics.createMetric(sparkContext, "number of scored rows"),
    "scoringTime" -> SQLMetrics.createNanoTimingMetric(sparkContext, "time in scoring")
  )

  protected override def doExecute(): RDD[InternalRow] = {
    val (task, ordinals) = (this.task, this.ordinals)
    val metrics = scoringMetrics
    val carried =
      StructType(child.output.map(field => StructField(field.name, field.dataType, field.nullable)))
    child.execute().mapPartitions { rows =>
      // A partition without rows loads no program.
      if (rows.hasNext) new ScoredRows(task, rows, carried, ordinals, metrics) else Iterator.empty
    }
  }

  protected override def doExecuteColumnar(): RDD[ColumnarBatch] = {
    val (task, ordinals) = (this.task, this.ordinals)
    val metrics = scoringMetrics
    child.executeColumnar().mapPartitions(new ScoredBatches(task, _, ordinals, metrics))
  }

  private def scoringMetrics = ScoringMetrics(longMetric("numOutputRows"), longMetric("scoringTime"))

  private def ordinals: Array[Int] =
    inputs.map(input => child.output.indexWhere(_.exprId == input.exprId)).toArray

  protected override def stringArgs: Iterator[Any] = Iterator(inputs, predictions)

  protected override def withNewChildInternal(newChild: SparkPlan): ScoreExec = copy(child = newChild)
}

private[flambeau] object ScoreExec {

  /** Spark's own vectors, whose numbers lie in this process's memory. Others, such as those on a GPU, are read as rows. */
  private val Known = Seq(
    "execution.vectorized.OnHeapColumnVector",
    "execution.vectorized.OffHeapColumnVector",
    "execution.vectorized.ConstantColumnVector",
    "execution.datasources.orc.OrcColumnVector",
    "vectorized.ArrowColumnVector"
  ).map("org.apache.spark.sql." + _)

  private def hasKnownVectors(plan: SparkPlan): Boolean = plan match {
    case stage: QueryStageExec => hasKnownVectors(stage.plan)
    case other                 => other.vectorTypes.exists(_.forall(Known.contains))
  }
}

/** Plans [[Score]]. Sessions know of it by [[Scoring]], or by [[flambeau.FlambeauExtensions]]. */
private[flambeau] object ScoreStrategy extends SparkStrategy {
  override def apply(plan: LogicalPlan): Seq[SparkPlan] = plan match {
    case Score(task, inputs, predictions, child) =>
      Seq(ScoreExec(task, inputs, predictions, planLater(child)))
    case _ => Nil
  }
}
