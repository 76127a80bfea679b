package flambeau.internal.rows

import flambeau.internal.session.Session
import flambeau.internal.storage.WorkDirectory
import org.apache.spark.sql.{Column, DataFrame}

import scala.collection.mutable

/** A column of written files.
  *
  * @param source
  *   the column of the DataFrame that it was made of
  * @param shape
  *   that of one row, as far as it is known; of several columns that are packed into one tensor, empty
  */
private[rows] final case class WrittenColumn(
    name: String,
    source: String,
    role: Role,
    dtype: String,
    shape: Option[Seq[Int]],
    expression: Column
)

/** What is written of a DataFrame's columns: a column that two tensors want as different types, or one of them as the label,
  * once for each.
  */
private[rows] final class Selection(df: DataFrame) {
  import Selection._

  private val written = mutable.LinkedHashMap.empty[(String, String, Role), WrittenColumn]

  /** The columns of the files. */
  private[rows] def columns: Seq[WrittenColumn] = written.values.toList

  /** Has these columns written, and gives the same tensors in terms of the names that they have in the files. Before that the
    * first rows of the DataFrame are computed where nested arrays are given no shape. Throws DataException for a row of these
    * that is refused.
    */
  def place(asked: DataColumns): DataColumns = asked.withNestedShapes(df).map { (tensor, role) =>
    val shape = if (tensor.columns.length == 1) tensor.shape else Some(Nil)
    val names = for ((source, expression) <- tensor.columns.zip(Expressions(df.schema, tensor, role))) yield {
      written.getOrElseUpdate(
        (source, tensor.dtype, role), {
          // The label's and the weight's own checks are part of what is written.
          val kind = if (role == Role.Input) tensor.dtype else s"${tensor.dtype} $role"
          val name = if (written.values.exists(_.name == source)) s"$source as $kind" else source
          WrittenColumn(name, source, role, tensor.dtype, shape, expression.as(name))
        }
      ).name
    }
    tensor.copy(columns = names)
  }

  /** Writes the columns as Parquet files under `directory`, computing the DataFrame once, with these partition columns, and
    * returns what reads them. Throws DataException, with the column's name, at the first row that is refused.
    */
  def save(partitions: Seq[(String, Column)], directory: String): DataFrame = {
    val values = partitions.map { case (name, value) => value.as(name) }
    val rows = df.select(columns.map(_.expression) ++ values: _*)
    val writer = rows.write.options(writeOptions)
    val path = WorkDirectory.sparkPath(directory)
    // Who removes what a failed job has written does so when no task of it writes there any more.
    Refusal.told(Session.untilTasksEnd(df.sparkSession.sparkContext) {
      (if (partitions.isEmpty) writer else writer.partitionBy(partitions.map(_._1): _*)).parquet(path)
    })
    // The schema is given, since a directory without rows may be without files to take it from.
    df.sparkSession.read.schema(rows.schema).parquet(path)
  }

  /** How Spark's Parquet writer is to write the columns. */
  private def writeOptions: Map[String, String] = {
    // Floats hardly repeat: a dictionary would be built, found too large and thrown away.
    val plain = columns.filter(_.dtype.startsWith("float")).flatMap { column =>
      Seq(
        s"parquet.enable.dictionary#${column.name}",
        s"parquet.enable.dictionary#${column.name}.list.element"
      ).map(_ -> "false")
    }
    Map(
      "compression" -> "zstd",
      "parquet.compression.codec.zstd.level" -> "1",
      "parquet.block.size" -> RowGroupBytes.toString
    ) ++ plain
  }
}

private[rows] object Selection {

  /** Small enough that a rank that reads part of a row group decodes little in vain, large enough to decode in bulk. */
  private val RowGroupBytes = 16 << 20
}
