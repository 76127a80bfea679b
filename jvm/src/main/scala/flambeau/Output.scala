package flambeau

import org.apache.spark.sql.types.DataType

/** A column that a fitted model adds, or a field of it where the module returns several tensors.
  *
  * @param name
  *   the column, or `<column>.<field>`, as `select` takes it
  * @param kind
  *   what the module's output is: `number`, `logits`, `probabilities` or `log_probabilities`; a single logit or probability
  *   counts to these
  * @param columnType
  *   its type in Spark
  */
final case class Output private[flambeau] (name: String, kind: String, columnType: DataType)
