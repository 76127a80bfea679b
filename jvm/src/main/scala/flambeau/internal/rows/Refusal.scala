package flambeau.internal.rows

import java.util.regex.Pattern

import flambeau.DataException
import flambeau.internal.util.Failures
import org.apache.spark.sql.Column
import org.apache.spark.sql.functions.{lit, raise_error}

/** Rows that a query of [[Expressions]] refuses: the sentence travels inside Spark's own message, between two marks. */
private[flambeau] object Refusal {
  val Begin = "[FLAMBEAU_DATA] "
  val End = " [/FLAMBEAU_DATA]"

  private val sentence = Pattern.compile(Pattern.quote(Begin) + "(.*?)" + Pattern.quote(End), Pattern.DOTALL)

  /** An expression that fails the query with this sentence. */
  def raise(what: String): Column = raise_error(lit(s"$Begin$what$End"))

  /** Runs a query, and throws the DataException that a refusal stands for. */
  def told[T](query: => T): T =
    try query
    catch { case error: Exception => throw found(error).getOrElse(error) }

  private def found(error: Throwable): Option[DataException] =
    Failures.causes(error).map(cause => sentence.matcher(String.valueOf(cause.getMessage))).collectFirst {
      case matcher if matcher.find() => new DataException(matcher.group(1), error)
    }
}
