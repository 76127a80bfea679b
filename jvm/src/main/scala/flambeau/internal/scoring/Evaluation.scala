package flambeau.internal.scoring

import flambeau.{DataException, TensorColumns}
import flambeau.jni.{EvaluationSpec, NativeLibrary, Scorer, ScorerSpec, TensorRows}
import flambeau.internal.rows.{DataColumns, Expressions, Refusal}
import flambeau.internal.session.Settings
import flambeau.internal.util.{Failures, Json}
import org.apache.spark.SparkException
import org.apache.spark.sql.{DataFrame, Row}

import scala.collection.immutable.ListMap

/** The loss and the metrics of a model on a DataFrame, by tasks that score their rows and add up. What adds up is the
  * code of a training's validation.
  */
private[flambeau] object Evaluation {

  /** The figures by name, the loss first; NaN for what is no finite number.
    *
    * @param asked
    *   the model's inputs, and the labels and the weight that they are held against
    * @param by
    *   JSON `{"loss", "metrics"}`, as a training job's program has them
    */
  def apply(
      asked: DataColumns,
      by: String,
      spec: ScorerSpec,
      df: DataFrame,
      settings: Settings
  ): Map[String, Double] = {
    // A name or an option that is unknown is refused before a job starts.
    val figures = NativeLibrary.torch(settings.get).figures(by, _: Array[Double])
    figures(Array.emptyDoubleArray)
    val valid = asked.valid(df)
    val columns = asked.withShapes(valid)
    val read = columns.tensors.flatMap { case (tensor, role) => Expressions(df.schema, tensor, role) }
    // Two tensors may be of one column.
    val selected = valid.select(read.zipWithIndex.map { case (column, index) => column.as(s"c$index") }: _*)
    val task = EvaluationTask(spec, settings, columns, by)
    val spark = df.sparkSession
    import spark.implicits._
    val found = told(selected.mapPartitions(task.sums _).collect())
    if (found.isEmpty) throw new DataException("there are no rows to evaluate on")
    val pairs = Json.items(Json.parse(figures(found.reduce(added(_, _)))))
    ListMap(pairs.map(pair => pair.get(0).asText -> pair.get(1).asDouble(Double.NaN)): _*)
  }

  /** The sums of both. */
  def added(one: Array[Double], other: Array[Double]): Array[Double] =
    one.zip(other).map { case (a, b) => a + b }

  /** Runs the query; rows that it refuses are a DataException. */
  private def told[T](query: => T): T =
    try Refusal.told(query)
    catch {
      case error: SparkException =>
        throw Failures.causes(error).collectFirst { case data: DataException => data }.getOrElse(error)
    }
}

/** What scores the rows of a partition and adds up; it travels from the driver to the tasks. */
private[flambeau] final case class EvaluationTask(
    spec: ScorerSpec,
    settings: Settings,
    columns: DataColumns,
    by: String
) {

  /** The sums over the rows, once; none of no rows. */
  def sums(rows: Iterator[Row]): Iterator[Array[Double]] = {
    if (rows.isEmpty) Iterator.empty
    else {
      def tensor(of: TensorColumns): TensorRows =
        TensorRows(Some(of.name), of.dtype, of.shape.getOrElse(Nil).map(_.toLong))
      val evaluation = EvaluationSpec(columns.labels.map(tensor), columns.weight.map(tensor), by)
      val scorer = Scorer(spec.copy(evaluation = Some(evaluation)), settings.get)
      val reader = RowReader.of(columns.inputs, columns.labels ++ columns.weight)
      val batch = scorer.newBatch()
      val parts = rows.grouped(batch.capacity).map { group =>
        batch.clear()
        group.foreach(reader.read(_, 0, batch))
        scorer.sums(batch)
      }
      Iterator.single(parts.reduce(Evaluation.added(_, _)))
    }
  }
}
