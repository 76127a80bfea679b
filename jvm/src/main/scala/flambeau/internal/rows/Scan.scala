package flambeau.internal.rows

import java.nio.charset.StandardCharsets.UTF_8
import java.security.MessageDigest
import java.util.{BitSet, Map => JavaMap}

import scala.collection.JavaConverters._
import scala.util.control.NonFatal

import flambeau.DataException
import flambeau.internal.storage.{Site, WorkDirectory}
import flambeau.internal.util.Failures
import flambeau.jni.StoredFile
import org.apache.hadoop.fs.Path
import org.apache.spark.sql.{AnalysisException, Column, DataFrame}
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.execution.columnar.InMemoryRelation
import org.apache.spark.sql.execution.datasources.{HadoopFsRelation, LogicalRelation}
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat
import org.apache.spark.sql.execution.datasources.v2.{DataSourceV2Relation, DataSourceV2ScanRelation}
import org.apache.spark.sql.flambeau.Plans
import org.apache.spark.sql.functions._
import org.apache.spark.sql.types.{BooleanType, FloatType}

/** A DataFrame whose rows are some of those of files, each once, which are read there.
  *
  * Spark stays the authority. One aggregate asks it where each row lies, as a bitmap of each file's rows, or their number where
  * they are its first ones or all, after filters, deletion vectors, time travel and whatever else a table's format knows; the
  * columns that a fit reads must be the files' own, which the optimized plan tells.
  *
  * @param file
  *   the hidden column that has the file of a row
  * @param row
  *   that with its number in the file, from 0 on
  * @param files
  *   those that it reads whole; none where it may have some of their rows
  * @param hasPaths
  *   whether `file` gives paths that are no URIs: what URIs escape is as it is in them
  * @param place
  *   one of its files, or the directory of the table; none where there is no file
  * @param constants
  *   the columns of a fit that have one value in each file, and are not in it
  */
private[rows] final case class Scan(
    df: DataFrame,
    file: String = "_metadata.file_path",
    row: String = "_metadata.row_index",
    files: Option[Seq[String]] = None,
    hasPaths: Boolean = false,
    place: Option[String] = None,
    constants: Seq[String] = Nil
) {
  import Scan._

  /** The rows, which those columns are read of and split by. Runs Spark jobs where the plan doesn't say that they are
    * all rows of the files, and writes `bitmaps`, a file of the work directory, where they are not the first ones of each.
    *
    * Throws DataException and StoreException for what workers would not read, and NotInPlace.
    */
  def shards(columns: DataColumns, site: Site, bitmaps: String): ShardSet = files match {
    case Some(whole) if columns.split.isEmpty =>
      ShardSet.inspected(columns, site, whole.sorted(DataFile.order).map(DataFile(_)), Nil, inPlace = true)
    case _ =>
      val found = parts(columns.split)
      val data = Array.concat(found.flatMap(_.bitmap): _*)
      if (data.nonEmpty) site.write(bitmaps, data)
      val offsets = found.scanLeft(0L)(_ + _.numBytes)
      val (validation, train) = found.zip(offsets).partition(_._1.isForValidation)
      def files(of: Seq[(Part, Long)]): Seq[DataFile] = of.map { case (part, offset) =>
        val rows =
          if (part.bitmap.isEmpty) FirstRows(part.numRows) else BitmapRange(bitmaps, offset, part.numBytes)
        DataFile(part.uri, Some(rows), part.values)
      }
      val digest = MessageDigest.getInstance("SHA-256")
      digest.update(
        found.map(part =>
          s"${part.isForValidation} ${part.numRows} ${part.numBytes} ${part.values.toSeq.sorted.mkString(" ")}"
        ).mkString(",").getBytes(UTF_8)
      )
      val all = digest.digest(data).map("%02x".format(_)).mkString
      ShardSet.inspected(columns, site, files(train), files(validation), inPlace = true)
        .copy(selectionDigest = Some(all))
  }

  /** Whether workers can be expected to read its files: they are files of theirs, or in a store like that of the work
    * directory, or options were given for stores.
    */
  def isReachable(work: WorkDirectory): Boolean = {
    def store(uri: String) = StoredFile.schemeOf(uri).map(scheme => Stores.getOrElse(scheme, scheme))
    work.settings.storeOptions.nonEmpty ||
    // By schemes alone: tables tell places that are no URIs, with spaces in them.
    place
      .filterNot(StoredFile.schemeOf(_).forall(LocalSchemes))
      .forall(uri => store(uri) == store(work.uri))
  }

  /** What there is of each file, in the files' order. */
  private def parts(split: Option[Split]): Seq[Part] = {
    val found =
      try Refusal.told(words(split).collect()).toSeq
      catch {
        case error: DataException => throw error
        // Such as for want of memory: it asks for more than writing the rows does.
        case NonFatal(error) if !String.valueOf(error.getMessage).toLowerCase.contains("cancel") =>
          val reason = s"the query of where its rows lie failed: ${Failures.firstLine(error)}"
          throw new NotInPlace(reason, cause = error)
      }
    val parts = found.map { row =>
      val (bitmap, numRows) = (Option(row.getAs[Array[Byte]]("bitmap")), row.getAs[Long]("n"))
      if (bitmap.exists(BitSet.valueOf(_).cardinality != numRows))
        throw new NotInPlace("it has some rows of its files more than once")
      val values = constants.zip(valueNames).map { case (name, value) =>
        name -> Option(row.getAs[String](value))
          .getOrElse(throw new NotInPlace(s"column '$name' holds a null"))
      }
      Part(uri(row.getAs[String]("file")), row.getAs[Boolean]("flag"), numRows, bitmap, values.toMap)
    }
    parts.sortBy(_.isForValidation).sortBy(_.uri)(DataFile.order)
  }

  /** A row for each file and for being for validation, with the number of rows, and the bitmap of these where they are not the
    * file's first ones.
    *
    * Numbers are hashed; for Spark's own bitmaps (`bitmap_construct_agg`) all rows would be sorted first, which takes three
    * times as long.
    */
  private def words(split: Option[Split]): DataFrame =
    try
      df.select(
        Seq(col(file).as("file"), col(row).as("row"), split.fold(lit(false))(_.flag).as("flag")) ++
          constants.zip(valueNames).map { case (name, value) => asText(df, name).as(value) }: _*
      )
        .groupBy(col("file"), col("flag"), expr("row div 64").as("word"))
        .agg(
          count("*").as("n"),
          expr("bit_or(shiftleft(1L, cast(row % 64 AS INT)))").as("bits") +: valueNames.map(greatest): _*
        )
        .groupBy("file", "flag")
        .agg(
          sum("n").as("n"),
          Seq(collect_list("word").as("words"), collect_list("bits").as("bits")) ++ valueNames.map(
            greatest
          ): _*
        )
        .select(
          Seq(col("file"), col("flag"), col("n"), bitmap(col("n"), col("words"), col("bits")).as("bitmap")) ++
            valueNames.map(col): _*
        )
    catch {
      case error: AnalysisException =>
        val reason = s"Spark does not tell where its rows lie: ${Failures.firstLine(error)}"
        throw new NotInPlace(reason, cause = error)
    }

  /** What the query calls the values of `constants`. */
  private def valueNames: Seq[String] = constants.indices.map(index => s"value$index")

  private def greatest(name: String): Column = max(name).as(name)

  private def uri(file: String): String =
    if (hasPaths && WorkDirectory.hasScheme(file)) new Path(file).toUri.toString else file
}

private[rows] object Scan {

  /** A file, and how many of its rows are read: the first ones, or those of a bitmap, which has a bit for each from the first
    * on, up to the last that is read.
    */
  private final case class Part(
      uri: String,
      isForValidation: Boolean,
      numRows: Long,
      bitmap: Option[Array[Byte]],
      values: Map[String, String]
  ) {
    def numBytes: Int = bitmap.fold(0)(_.length)
  }

  private val Iceberg = "org.apache.iceberg.spark.source.SparkTable"
  private val IcebergBase = "org.apache.iceberg.BaseTable"
  private val Delta = ".DeltaParquetFileFormat"

  /** The operators of a plan after which all rows of its files are there. */
  private val All = Set("Project", "SubqueryAlias")

  /** Those after which rows are those of their files, in their order. */
  private val InOrder = All + "Filter"

  /** Those after which they are, in any order. Others may make rows, or drop some by their hidden columns. */
  private val InSomeOrder = InOrder ++
    Seq("GlobalLimit", "LocalLimit", "Repartition", "RepartitionByExpression", "Sample", "Sort", "Window")

  /** Schemes of files of the workers' machines. */
  private val LocalSchemes = Set("file", "dbfs")

  /** Schemes that mean the same store as others. */
  private val Stores = Map("s3a" -> "s3", "abfss" -> "abfs")

  /** One bitmap of words of 64 rows each, without the zeros at its end; none for the first `numRows` of a file. */
  private val bitmap = udf { (numRows: Long, words: Seq[Long], bits: Seq[Long]) =>
    val all = new Array[Long](words.max.toInt + 1)
    for ((word, rows) <- words.zip(bits)) all(word.toInt) = rows
    val rows = BitSet.valueOf(all)
    if (rows.length == numRows && rows.cardinality == numRows) null else rows.toByteArray
  }

  /** How the rows of a DataFrame are read of its files, of which those columns are to be; with `keepsOrder` as the DataFrame
    * has them, else in any order. Throws NotInPlace.
    */
  def of(df: DataFrame, columns: DataColumns, keepsOrder: Boolean): Scan =
    try found(df, columns, keepsOrder)
    catch {
      // Another release of Spark's, or of a table's format.
      case error @ (_: LinkageError | _: ReflectiveOperationException) =>
        val reason = s"its plan can't be read (${error.getClass.getSimpleName})"
        throw new NotInPlace(reason, isNotable = false, error)
    }

  private def found(df: DataFrame, columns: DataColumns, keepsOrder: Boolean): Scan = {
    // As they were asked for: the optimizer makes one operator of what is not alike here.
    val (operators, _) = read(Plans.of(df))
    val plan = Plans.optimized(df)
    val (_, leaf) = read(plan)
    val scan = ofLeaf(df, leaf, columns)
    for (other <- operators.filterNot(InSomeOrder).sorted.headOption)
      throw new NotInPlace(s"not all of its rows are rows of files as they are ($other)")
    for (other <- operators.filterNot(InOrder).sorted.headOption if keepsOrder)
      throw new NotInPlace(s"shuffle is off, and its rows are not in the order of files ($other)")
    for (name <- columns.names if !leaf.outputSet.contains(plan.output(df.columns.indexOf(name))))
      throw new NotInPlace(s"column '$name' is computed, and not one of the files' own")
    val hidden = scan.file.takeWhile(_ != '.')
    if (df.columns.exists(Columns.isSame(_, hidden))) throw new NotInPlace(s"it has a column '$hidden'")
    refuseOtherTypes(df, columns)
    if (operators.forall(All) && scan.constants.isEmpty) scan else scan.copy(files = None)
  }

  /** The names of a plan's operators, and what they read. Throws NotInPlace where that is several things. */
  private def read(plan: LogicalPlan): (Seq[String], LogicalPlan) = {
    val operators = Iterator.iterate(plan)(_.children.head).takeWhile(_.children.length == 1).toList
    val last = operators.lastOption.fold(plan)(_.children.head)
    if (last.children.nonEmpty) {
      val hasTable = last.collectLeaves().exists {
        case _: LogicalRelation | _: DataSourceV2Relation | _: DataSourceV2ScanRelation => true
        case _                                                                          => false
      }
      throw new NotInPlace("it is made of several tables", isNotable = hasTable)
    }
    (operators.map(_.nodeName), last)
  }

  private def ofLeaf(df: DataFrame, leaf: LogicalPlan, columns: DataColumns): Scan = {
    def no =
      throw new NotInPlace(
        "it is not read from Parquet files, a Delta table or an Iceberg table",
        isNotable = false
      )
    leaf match {
      case _: InMemoryRelation =>
        throw new NotInPlace("it is cached, and its rows are those of the cache")
      case read: LogicalRelation =>
        read.relation match {
          case files: HadoopFsRelation => ofFiles(df, files, columns.names)
          case _                       => no
        }
      case read: DataSourceV2ScanRelation if read.relation.table.getClass.getName == Iceberg =>
        val table = call(read.relation.table, "table")
        refuseRenamed(table, columns.names)
        Scan(df, "_file", "_pos", hasPaths = true, place = Some(call(table, "location").toString))
      case _ => no
    }
  }

  private def ofFiles(df: DataFrame, relation: HadoopFsRelation, names: Seq[String]): Scan = {
    val format = relation.fileFormat.getClass
    // Of these, Spark has the values from its catalog, or from a table's log.
    val constants = names.filter(relation.partitionSchema.fieldNames.contains(_))
    if (format == classOf[ParquetFileFormat]) {
      val files = relation.location.inputFiles.toSeq
      if (files.distinct.length < files.length)
        throw new NotInPlace("it has some rows of its files more than once")
      Scan(df, files = Some(files), place = files.headOption, constants = constants)
    } else if (format.getName.endsWith(Delta)) {
      if (call(call(relation.fileFormat, "columnMappingMode"), "name") != "none")
        throw new NotInPlace("the columns of its files have other names (column mapping)")
      // Not its files, of which there may be very many.
      Scan(df, place = relation.location.rootPaths.headOption.map(_.toString), constants = constants)
    } else {
      val reason = s"its files are read by ${format.getSimpleName}, and not as Parquet"
      throw new NotInPlace(reason, isNotable = false)
    }
  }

  /** A column of numbers or booleans as workers take its value. */
  private def asText(df: DataFrame, name: String): Column = {
    val column = df(Expressions.quoted(name))
    val number = df.schema(name).dataType match {
      case BooleanType => column.cast("int")
      case FloatType   => column.cast("double")
      case _           => column
    }
    number.cast("string")
  }

  /** Throws NotInPlace for columns that workers would find or read otherwise than Spark does. */
  private def refuseOtherTypes(df: DataFrame, columns: DataColumns): Unit =
    for ((tensor, _) <- columns.tensors; name <- tensor.columns) {
      val field = df.schema(name)
      // Which Spark may look for in place of the name.
      if (field.metadata.contains("parquet.field.id"))
        throw new NotInPlace(s"column '$name' has an id in its files (parquet.field.id)")
      if (tensor.dtype == "bool" && field.dataType != BooleanType)
        throw new NotInPlace(s"column '$name' is ${Columns.typeName(field.dataType)}, and read as bool")
    }

  /** Throws NotInPlace where a column of an Iceberg table may have had another name once, or its name may have been another's:
    * files keep the names that they were written with.
    */
  private def refuseRenamed(table: AnyRef, names: Seq[String]): Unit = {
    if (table.getClass.getName != IcebergBase)
      throw new NotInPlace("it is not a table's rows, but rows about them", isNotable = false)
    if (call(table, "properties").asInstanceOf[JavaMap[_, _]].containsKey("schema.name-mapping.default"))
      throw new NotInPlace("the columns of its files have other names (schema.name-mapping.default)")
    val now = call(table, "schema")
    val schemas = call(table, "schemas").asInstanceOf[JavaMap[_, AnyRef]].values.asScala
    if (schemas.size <= call(now, "schemaId").asInstanceOf[Int])
      throw new NotInPlace("some of its former schemas are forgotten")
    for (name <- names) {
      val field = fieldOf(now, name)
        .getOrElse(throw new NotInPlace(s"column '$name' is not one of the files' own"))
      for (schema <- schemas)
        (fieldOf(schema, name), fieldOf(schema, call(field, "fieldId"))) match {
          case (Some(named), same) if !same.contains(named) =>
            throw new NotInPlace(s"column '$name' was another once, or of another type")
          case (None, Some(_)) => throw new NotInPlace(s"column '$name' had another name once")
          case _               => ()
        }
    }
  }

  /** The field of an Iceberg schema that has that name, or number. */
  private def fieldOf(schema: AnyRef, key: AnyRef): Option[AnyRef] = {
    val kind = key match {
      case _: Integer => Integer.TYPE
      case _          => classOf[String]
    }
    Option(schema.getClass.getMethod("findField", kind).invoke(schema, key))
  }

  /** What a method gives of a class that is not there at compile time. */
  private def call(target: AnyRef, method: String): AnyRef =
    target.getClass.getMethod(method).invoke(target)
}
