package flambeau

import scala.annotation.varargs

import flambeau.internal.rows.Expressions
import org.apache.spark.sql.Column
import org.apache.spark.sql.functions.call_function

/** A model as a function of columns; [[TorchModel.udf()*]] makes it.
  *
  * @param name
  *   what the SQL of its session knows it by
  */
final class ModelFunction private[flambeau] (val name: String) {

  /** The function of these columns: those of the model's `inputs`, in their order. */
  @varargs
  def apply(columns: Column*): Column = call_function(Expressions.quoted(name), columns: _*)
}
