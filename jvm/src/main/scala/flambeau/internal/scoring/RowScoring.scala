package flambeau.internal.scoring

import flambeau.{ParamException, TensorColumns}
import flambeau.jni.{Scorer, ScorerSpec}
import flambeau.internal.model.{OutputColumn, OutputSpec, OutputTensor}
import flambeau.internal.rows.{Columns, Expressions, Role}
import flambeau.internal.session.Settings
import org.apache.spark.ml.linalg.Vectors
import org.apache.spark.sql.functions.col
import org.apache.spark.sql.types._
import org.apache.spark.sql.{DataFrame, Encoders, Row}
import org.slf4j.LoggerFactory

/** `transform` by what Spark promises to all alone: the partitions of a Dataset of rows.
  *
  * It works on every Spark of a line, and costs an object for each value of a row, of the columns too that the program does
  * not read. [[Scoring]] is the usual way, by interfaces that a vendor's Spark may have changed.
  */
private[flambeau] object RowScoring {
  private val log = LoggerFactory.getLogger("flambeau")

  /** The configuration's key for the way in which `transform` scores: `operator`, the default, or `rows`. */
  val Key = "spark.flambeau.scoring"

  /** What the operator uses that the Spark that runs has not. */
  private lazy val missing: Option[String] =
    Linkage.missing("flambeau.internal.scoring.Scoring$", getClass.getClassLoader)

  /** Whether rows are scored so: where the settings ask for it, or where the Spark that runs lacks what the operator is made
    * of, which it `warns` of. That is known before any of it runs, on the driver or on executors.
    */
  def isChosen(settings: Settings, missing: => Option[String] = missing, warns: Boolean = true): Boolean =
    settings.get(Key).getOrElse("operator") match {
      case "rows" => true
      case "operator" =>
        for (what <- missing if warns)
          log.warn(
            s"this Spark has other internals than Flambeau was built for ($what): scoring row by row; set $Key to " +
              "'rows' to do so without this warning"
          )
        missing.isDefined
      case other => throw new ParamException(s"$Key is '$other': give 'operator' or 'rows'")
    }

  def apply(
      tensors: Seq[TensorColumns],
      outputs: Seq[OutputColumn],
      output: OutputSpec,
      spec: ScorerSpec,
      df: DataFrame,
      settings: Settings
  ): DataFrame = {
    val converted =
      tensors.flatMap(Expressions(df.schema, _, Role.Input)).zipWithIndex.map { case (column, index) =>
        column.as(s"flambeau input $index")
      }
    val task = RowTask(spec, settings, RowReader.of(tensors), outputs, output, df.schema.length)
    val schema = StructType(df.schema.fields ++ outputs.map(_.field))
    df.select(col("*") +: converted: _*).mapPartitions(task.score _)(Encoders.row(schema))
  }
}

/** What scores the rows of a partition; it travels from the driver to the tasks.
  *
  * @param numCarried
  *   the columns that stay; those of the inputs follow them
  */
private[flambeau] final case class RowTask(
    spec: ScorerSpec,
    settings: Settings,
    reader: RowReader,
    columns: Seq[OutputColumn],
    output: OutputSpec,
    numCarried: Int
) {

  /** The rows with their outputs; a batch of them is read ahead. */
  def score(rows: Iterator[Row]): Iterator[Row] = if (rows.isEmpty) Iterator.empty
  else {
    val scorer = Scorer(spec, settings.get)
    val batch = scorer.newBatch()
    rows.grouped(batch.capacity).flatMap { group =>
      batch.clear()
      group.foreach(reader.read(_, numCarried, batch))
      val results = scorer.score(batch)
      group.iterator.zipWithIndex.map { case (row, index) =>
        Row.fromSeq(row.toSeq.take(numCarried) ++ columns.zipWithIndex.map { case (column, place) =>
          valueOf(column, results, place, index)
        })
      }
    }
  }

  /** An output of a row, as Spark's rows have it. */
  private def valueOf(column: OutputColumn, results: Array[AnyRef], place: Int, row: Int): Any =
    (column.tensor, column.field.dataType) match {
      case (Some(tensor), _) => ofTensor(output.tensors(tensor), results(tensor), row)
      case (None, StructType(_)) =>
        Row.fromSeq(output.tensors.zipWithIndex.map { case (tensor, index) =>
          ofTensor(tensor, results(index), row)
        })
      case (None, vector) if Columns.isVector(vector) =>
        val numClasses = output.numClasses
        Vectors.dense(results(place).asInstanceOf[Array[Double]].slice(
          row * numClasses,
          (row + 1) * numClasses
        ))
      case _ => element(results(place), row)
    }

  private def ofTensor(tensor: OutputTensor, results: AnyRef, row: Int): Any = {
    def nested(shape: Seq[Int], start: Int): Any =
      if (shape.isEmpty) element(results, start)
      else Seq.tabulate(shape.head)(index => nested(shape.tail, start + index * shape.tail.product))
    nested(if (tensor.isScalar) Nil else tensor.shape, row * tensor.shape.product)
  }

  private def element(results: AnyRef, index: Int): Any = java.lang.reflect.Array.get(results, index)
}
