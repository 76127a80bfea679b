package flambeau

import com.fasterxml.jackson.databind.node.ObjectNode
import org.apache.spark.sql.{Column, DataFrame, SparkSession}
import org.apache.spark.sql.functions._
import org.apache.spark.sql.types.{BinaryType, StructType}

import scala.collection.mutable

import flambeau.Expressions.quoted

/** Parquet files with the rows. `columns` are in terms of the files, all shapes known. */
private[flambeau] final case class ShardSet(
    columns: DataColumns,
    train: Seq[String],
    validation: Seq[String],
    numRows: Long,
    numValidationRows: Long
) {

  /** The training job's `data`. */
  def jobData: ObjectNode = {
    val json = Json.obj()
    json.replace("train", Json.strings(train))
    json.replace("validation", Json.strings(validation))
    json.replace("spec", columns.specJson)
    json
  }
}

/** Training rows as Parquet shards, written from a DataFrame in one job. */
private[flambeau] object Shards {

  /** The partition column that separates validation rows; its name is not one that a user's column has. */
  val Flag = "flambeau_validation"

  /** Small enough that a rank that reads part of a row group decodes little in vain, large enough to decode in bulk. */
  private val RowGroupBytes = 16 << 20

  /** The columns that a fit reads; see [[DataColumns.resolve]]. */
  def resolve(
      schema: StructType,
      params: HasTrainingParams,
      labelDtype: Option[String],
      wide: Boolean
  ): DataColumns =
    DataColumns.resolve(schema, params, labelDtype, wide)

  /** Writes the columns' rows under `directory`, computing `df` once, and returns what was written. Before that the first rows
    * of `df` are computed where nested arrays are given no shape.
    *
    * Throws DataException, with the column's name, at the first row that is refused, and where no row is left to train
    * on.
    */
  def write(df: DataFrame, asked: DataColumns, directory: String): ShardSet = {
    val columns = withNestedShapes(df, asked)
    val (selected, inFiles) = select(df.schema, columns)
    val rows = df.select(selected ++ columns.split.map(flag(_).as(Flag)): _*)
    val writer = rows.write.options(writeOptions(inFiles))
    val path = WorkDirectory.sparkPath(directory)
    Refusal.told {
      (if (columns.split.isDefined) writer.partitionBy(Flag) else writer).parquet(path)
    }
    // The schema is given, since a directory without rows may be without files to take it from.
    val written = df.sparkSession.read.schema(rows.schema).parquet(path)
    describe(written, inFiles, columns.split.map(_ => Flag))
  }

  /** The Parquet files under `path`, used where they lie; see [[ShardsInPlace]]. */
  def inPlace(
      spark: SparkSession,
      path: String,
      params: HasTrainingParams,
      labelDtype: Option[String],
      wide: Boolean
  ): ShardSet = ShardsInPlace(spark, path, params, labelDtype, wide)

  /** The files that `df` reads, their numbers of rows, and the shapes that their first row has.
    *
    * `flag` names the partition column that is true for validation rows.
    */
  def describe(df: DataFrame, columns: DataColumns, flag: Option[String]): ShardSet = {
    // Sorted by directory, then by name: Spark names files by the number of the partition that wrote them.
    val files = df.inputFiles.toSeq.sortBy(uri => uri.splitAt(uri.lastIndexOf('/') + 1))
    val (train, validation, numRows, numValidationRows) = flag match {
      case None => (files, Nil, df.count(), 0L)
      case Some(name) =>
        val (flagged, others) = files.partition(uri => isTrue(PartitionPath.value(uri, name).orNull, name))
        val counts = df.groupBy(col(quoted(name)).cast("string")).count().collect()
        val (forValidation, forTraining) = counts.partition(row => isTrue(row.getString(0), name))
        (others, flagged, forTraining.map(_.getLong(1)).sum, forValidation.map(_.getLong(1)).sum)
    }
    if (numRows == 0) {
      val why = if (numValidationRows > 0) "all rows are for validation" else "there are no rows"
      throw new DataException(s"there is nothing to train on: $why")
    }
    ShardSet(withShapes(df, columns), train, validation, numRows, numValidationRows)
  }

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

  /** Whether a row is for validation. */
  private def flag(split: Split): Column = split match {
    case Split.Fraction(fraction, seed) => rand(seed) < fraction
    case Split.Indicator(name) =>
      val column = col(quoted(name))
      val message = s"column '$name' holds a null: it says of each row whether it is for validation"
      when(column.isNull, Refusal.raise(message)).otherwise(column)
  }

  /** Whether a partition column's value says that its rows are for validation. */
  private def isTrue(value: String, column: String): Boolean = String.valueOf(value).toLowerCase match {
    case "true" | "1"  => true
    case "false" | "0" => false
    case _ =>
      throw new DataException(
        s"column '$column' holds ${Check.show(value)}; validationIndicatorCol names a column of true and false"
      )
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

  /** The columns with the shapes that were not known, taken from the first row; that others agree is seen in reading. */
  private def withShapes(df: DataFrame, columns: DataColumns): DataColumns = {
    val unknown = columns.tensors.map(_._1).filter(_.shape.isEmpty).distinct
    if (unknown.isEmpty) columns
    else {
      val sizes = unknown.map { tensor =>
        val column = col(quoted(tensor.columns.head))
        if (df.schema(tensor.columns.head).dataType == BinaryType) length(column) else size(column)
      }
      val row = df.select(sizes: _*).head()
      val shapes = unknown.zipWithIndex.map { case (tensor, index) => tensor -> Seq(row.getInt(index)) }.toMap
      columns.map((tensor, _) => tensor.copy(shape = tensor.shape.orElse(shapes.get(tensor))))
    }
  }
}
