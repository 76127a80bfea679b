package flambeau.internal.scoring

import flambeau.ParamException
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression
import org.apache.spark.sql.catalyst.plans.logical.{Aggregate, LogicalPlan, Project}
import org.apache.spark.sql.catalyst.rules.Rule

import scala.collection.mutable

/** Puts a [[Score]] for each [[ScoreCall]] below the operator that has it, as Spark does with functions of Python: so rows are
  * scored in batches, all of them, whatever condition the call stands in.
  */
private[flambeau] object ScoreCallRule extends Rule[LogicalPlan] {

  override def apply(plan: LogicalPlan): LogicalPlan = plan.transformUp {
    case aggregate: Aggregate if aggregate.aggregateExpressions.exists(isAbove(aggregate, _)) =>
      val Project(columns, below) = split(aggregate)
      scored(Project(columns, scored(below)))
    case other if other.expressions.exists(hasCall) => scored(other)
  }

  private def hasCall(expression: Expression): Boolean = expression.exists(_.isInstanceOf[ScoreCall])

  /** Whether an aggregate computes an expression, for those above it. */
  private def isGiven(aggregate: Aggregate, expression: Expression): Boolean =
    expression.isInstanceOf[AggregateExpression] ||
      aggregate.groupingExpressions.exists(_.semanticEquals(expression))

  /** Whether an expression calls a model on what the aggregate gives. */
  private def isAbove(aggregate: Aggregate, expression: Expression): Boolean =
    !isGiven(aggregate, expression) &&
      (expression.isInstanceOf[ScoreCall] || expression.children.exists(isAbove(aggregate, _)))

  /** The aggregate, below what calls a model on what it gives. */
  private def split(aggregate: Aggregate): Project = {
    val computed = mutable.Buffer.empty[NamedExpression]
    def take(expression: Expression): Attribute = {
      computed += (expression match {
        case named: NamedExpression => named
        case other                  => Alias(other, "computed")()
      })
      computed.last.toAttribute
    }
    val columns = aggregate.aggregateExpressions.map { column =>
      if (isAbove(aggregate, column))
        column.transformDown { case part if isGiven(aggregate, part) => take(part) }
          .asInstanceOf[NamedExpression]
      else take(column)
    }
    Project(columns, aggregate.copy(aggregateExpressions = computed.toList))
  }

  /** An operator with what computes its calls below it. */
  private def scored(plan: LogicalPlan): LogicalPlan = {
    // Calls on what others give come after those.
    val calls = plan.expressions.flatMap(_.collect {
      case call: ScoreCall if !call.children.exists(hasCall) => call
    })
    if (calls.isEmpty) plan
    else {
      val results = mutable.Map.empty[Expression, Expression]
      val children = plan.children.map { child =>
        calls.filter(_.references.subsetOf(child.outputSet)).foldLeft(child) { (below, call) =>
          if (results.contains(call.canonicalized)) below
          else {
            val (score, result) = scoreOf(call, below)
            results(call.canonicalized) = result
            score
          }
        }
      }
      for (call <- calls if !results.contains(call.canonicalized))
        throw new ParamException(
          s"${call.function.name} takes columns of both sides of a join in its condition: call it in a WHERE"
        )
      val replaced = plan.withNewChildren(children).transformExpressions {
        case call: ScoreCall => results.getOrElse(call.canonicalized, call)
      }
      val whole = scored(replaced)
      if (whole.sameOutput(plan)) whole else Project(plan.output, whole)
    }
  }

  /** What computes a call on a child's rows, and the call's result there. */
  private def scoreOf(call: ScoreCall, child: LogicalPlan): (Score, Expression) = {
    val function = call.function
    val arguments: Seq[NamedExpression] = call.children.map {
      case attribute: Attribute => attribute
      case other                => Alias(other, "argument")()
    }
    val computed = arguments.filterNot(_.isInstanceOf[Attribute])
    val rows = if (computed.isEmpty) child else Project(child.output ++ computed, child)
    val predictions = function.outputs.map { case (dtype, _) => AttributeReference(function.name, dtype)() }
    val score =
      Score(function.task(arguments.map(_.dataType)), arguments.map(_.toAttribute), predictions, rows)
    val result =
      if (function.fields.isEmpty) predictions.head
      else CreateNamedStruct(function.fields.zip(predictions).flatMap { case (name, part) =>
        Seq(Literal(name), part)
      })
    (score, result)
  }
}
