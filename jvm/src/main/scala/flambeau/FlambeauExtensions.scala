package flambeau

import flambeau.internal.scoring.{ScoreCallRule, ScoreRule, ScoreStrategy}
import org.apache.spark.sql.SparkSessionExtensions

/** Lets a session plan and optimize what `transform` gives, from its start on: `spark.sql.extensions` set to
  * `flambeau.FlambeauExtensions`.
  *
  * PySpark's models are scored in the JVM by default in a session that has it.
  *
  * Sessions in which a model transforms learn of it by themselves. Others do not, such as one that reads another's global
  * temporary view.
  */
final class FlambeauExtensions extends (SparkSessionExtensions => Unit) {
  override def apply(extensions: SparkSessionExtensions): Unit = {
    extensions.injectPlannerStrategy(_ => ScoreStrategy)
    extensions.injectOptimizerRule(_ => ScoreCallRule)
    extensions.injectOptimizerRule(_ => ScoreRule)
  }
}
