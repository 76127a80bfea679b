package flambeau.internal.rows

import flambeau.{DataException, StoreException}
import flambeau.internal.rows.Expressions.quoted
import flambeau.internal.storage.{Site, WorkDirectory}
import flambeau.internal.util.Failures
import org.apache.spark.sql.{Column, DataFrame}
import org.apache.spark.sql.functions._
import org.apache.spark.sql.types.StructType
import org.slf4j.LoggerFactory

import scala.collection.mutable

/** The rows of a DataFrame: in the files that it is read from, as the param `inPlace` says, else written into the work
  * directory as Parquet shards, in one job.
  */
private[flambeau] final class FrameRows(df: DataFrame) extends Rows {
  import FrameRows._

  override def columns(reading: Reading): DataColumns = DataColumns.resolve(df.schema, reading)

  /** Throws DataException also where the rows are to be read in place and can't be. */
  override def shards[T](columns: DataColumns, reading: Reading, site: Site)(use: ShardSet => T): T =
    Rows.held(site) { directory =>
      inPlace(columns, reading, site, s"$directory/bitmaps").getOrElse(write(columns, s"$directory/data"))
    }(use)

  /** The rows in the files that they are read from; none where they are not to be read there. */
  private def inPlace(
      columns: DataColumns,
      reading: Reading,
      site: Site,
      bitmaps: String
  ): Option[ShardSet] = {
    val how = reading.params.getInPlace
    if (how == "never") None
    else
      try {
        val scan = Scan.of(df, columns, keepsOrder = !reading.params.getShuffle)
        if (how == "auto" && !scan.isReachable(site.work))
          throw new NotInPlace("its store is not that of workDir, and no spark.flambeau.store option is set")
        Some(scan.shards(columns, site, bitmaps))
      } catch {
        case error @ (_: NotInPlace | _: DataException | _: StoreException) if how == "always" =>
          throw new DataException(
            s"inPlace is always, and the rows can't be read in place: ${error.getMessage}",
            error
          )
        case error: NotInPlace if !error.isScan => None
        case error @ (_: NotInPlace | _: DataException | _: StoreException) =>
          log.info(s"the rows are written as shards, and not read in place: ${Failures.firstLine(error)}")
          None
      }
  }

  /** Writes the columns' rows under `directory`, computing `df` once, and returns what was written. Before that the first rows
    * of `df` are computed where nested arrays are given no shape.
    *
    * Throws DataException, with the column's name, at the first row that is refused, and where no row is left to train
    * on.
    */
  def write(asked: DataColumns, directory: String): ShardSet = {
    val columns = withNestedShapes(df, asked)
    val (selected, inFiles) = select(df.schema, columns)
    val rows = df.select(selected ++ columns.split.map(_.flag.as(Flag)): _*)
    val writer = rows.write.options(writeOptions(inFiles))
    val path = WorkDirectory.sparkPath(directory)
    Refusal.told {
      (if (columns.split.isDefined) writer.partitionBy(Flag) else writer).parquet(path)
    }
    // The schema is given, since a directory without rows may be without files to take it from.
    val written = df.sparkSession.read.schema(rows.schema).parquet(path)
    ShardSet.of(written, inFiles, columns.split.map(_ => Flag))
  }
}

private[flambeau] object FrameRows {
  private val log = LoggerFactory.getLogger("flambeau")

  /** The partition column that separates validation rows; its name is not one that a user's column has. */
  private val Flag = "flambeau_validation"

  /** Small enough that a rank that reads part of a row group decodes little in vain, large enough to decode in bulk. */
  private val RowGroupBytes = 16 << 20

  /** The expressions to write, and the same tensors in terms of the names that they have in the files.
    *
    * A column that two tensors want as different types is written once for each.
    */
  private def select(schema: StructType, columns: DataColumns): (Seq[Column], DataColumns) = {
    val written = mutable.LinkedHashMap.empty[(String, String), String]
    val selected = mutable.Buffer.empty[Column]
    val inFiles = columns.map { (tensor, role) =>
      val names = for ((name, expression) <- tensor.columns.zip(Expressions(schema, tensor, role))) yield {
        // The label's and the weight's own checks are part of what is written.
        val kind = if (role == Role.Input) tensor.dtype else s"${tensor.dtype} $role"
        written.getOrElseUpdate(
          (name, kind), {
            val inFile = if (written.values.exists(_ == name)) s"$name as $kind" else name
            selected += expression.as(inFile)
            inFile
          }
        )
      }
      tensor.copy(columns = names)
    }
    (selected.toList, inFiles)
  }

  /** How Spark's Parquet writer is to write these tensors' columns. */
  private def writeOptions(inFiles: DataColumns): Map[String, String] = {
    // Floats hardly repeat: a dictionary would be built, found too large and thrown away.
    val floats = inFiles.tensors.map(_._1).filter(_.dtype.startsWith("float")).flatMap(_.columns)
    val plain = floats.flatMap { name =>
      Seq(s"parquet.enable.dictionary#$name", s"parquet.enable.dictionary#$name.list.element").map(
        _ -> "false"
      )
    }
    Map(
      "compression" -> "zstd",
      "parquet.compression.codec.zstd.level" -> "1",
      "parquet.block.size" -> RowGroupBytes.toString
    ) ++ plain
  }

  /** The columns with the shapes of nested arrays, where none is given that of the first row that has one in each: no null
    * and no empty array. All rows are held to it as they are written.
    */
  private def withNestedShapes(df: DataFrame, columns: DataColumns): DataColumns = {
    val nested = columns.tensors.map(_._1).filter(_.shape.isEmpty).map(_.columns.head).distinct
      .filter(name => Columns.depth(df.schema(name).dataType) > 1)
    // By the first array of each.
    val sizes = nested.map { name =>
      val depth = Columns.depth(df.schema(name).dataType)
      array(Seq.iterate(col(quoted(name)), depth)(get(_, lit(0))).map(size(_)): _*)
    }
    val row =
      if (nested.isEmpty) None
      else df.where(sizes.map(forall(_, _ > 0)).reduce(_ && _)).select(sizes: _*).take(1).headOption
    row.fold(columns) { first =>
      val shapes = nested.zip(nested.indices.map(first.getSeq[Int](_))).toMap
      columns.map((tensor, _) => tensor.copy(shape = tensor.shape.orElse(shapes.get(tensor.columns.head))))
    }
  }
}
