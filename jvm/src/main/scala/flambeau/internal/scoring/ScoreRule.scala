package flambeau.internal.scoring

import org.apache.spark.sql.catalyst.expressions.{And, AttributeSet, PredicateHelper}
import org.apache.spark.sql.catalyst.optimizer.{
  CollapseProject, ColumnPruning, PushDownPredicates, RemoveNoopOperators, SimplifyExtractValueOps
}
import org.apache.spark.sql.catalyst.plans.logical.{Filter, LogicalPlan, Project}
import org.apache.spark.sql.catalyst.rules.Rule

/** Moves predicates that touch no prediction below [[Score]], and has it give no prediction that nobody reads: what Spark's
  * own rules do for a column that an expression computes.
  */
private[flambeau] object ScoreRule extends Rule[LogicalPlan] with PredicateHelper {

  override def apply(plan: LogicalPlan): LogicalPlan = plan.transform {
    case filter @ Filter(condition, score: Score) =>
      val (below, above) = splitConjunctivePredicates(condition).partition { predicate =>
        predicate.deterministic && predicate.references.subsetOf(score.child.outputSet)
      }
      if (below.isEmpty) filter
      else {
        val moved = score.copy(child = Filter(below.reduce(And), score.child))
        if (above.isEmpty) moved else Filter(above.reduce(And), moved)
      }
    case project @ Project(columns, score: Score) =>
      val read = AttributeSet(columns.flatMap(_.references))
      val places = score.predictions.indices.filter(place => read.contains(score.predictions(place)))
      if (places.isEmpty) Project(columns, score.child)
      else if (places.length < score.predictions.length) Project(columns, score.keep(places))
      else project
  }
}

/** [[ScoreRule]] for sessions that are there already, whose own rules ran before it: those that go on from there run again. */
private[flambeau] object LateScoreRule extends Rule[LogicalPlan] {
  private val further =
    Seq(SimplifyExtractValueOps, PushDownPredicates, ColumnPruning, CollapseProject, RemoveNoopOperators)

  override def apply(plan: LogicalPlan): LogicalPlan = {
    val moved = ScoreRule(plan)
    if (moved.fastEquals(plan)) plan else apply(further.foldLeft(moved)((now, rule) => rule(now)))
  }
}
