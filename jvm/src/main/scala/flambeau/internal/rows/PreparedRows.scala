package flambeau.internal.rows

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.{DataException, ParamException}
import flambeau.internal.session.{Session, Settings}
import flambeau.internal.storage.{Site, WorkDirectory}
import flambeau.internal.util.{Failures, Json}
import org.apache.spark.sql.functions.col
import org.apache.spark.sql.types.{DataType, StructType}
import org.apache.spark.sql.{Column, DataFrame, SparkSession}
import org.slf4j.LoggerFactory

import scala.util.control.NonFatal

/** The rows of a DataFrame, written once as Parquet files for any number of fits.
  *
  * What is in the files, whether they are still those, and which fits they are for, native/supervisor says.
  *
  * @param site
  *   their directory
  * @param manifest
  *   what the supervisor says of them
  * @param withoutFold
  *   the fold whose rows are left out
  * @param isPrivate
  *   whether they are this process's alone, and need no check
  */
private[flambeau] final class PreparedRows private (
    val site: Site,
    val manifest: JsonNode,
    withoutFold: Option[Int],
    isPrivate: Boolean
) extends Rows {

  /** The directory. */
  def path: String = site.work.uri

  /** The columns that were read of the DataFrame, with the types that they have there. */
  private lazy val schema: StructType =
    DataType.fromJson(Json.text(manifest.get("schema"))).asInstanceOf[StructType]

  /** Nested arrays lie flat. */
  override def frame: DataFrame = {
    val paths =
      Json.items(manifest.get("files")).map(file =>
        WorkDirectory.sparkPath(site.work.path(file.get("name").asText))
      )
    val names = Json.items(manifest.get("columns")).reverseIterator.map { column =>
      column.get("source").asText -> column.get("name").asText
    }.toMap
    site.spark.read.parquet(paths: _*).select(names.toSeq.map { case (source, name) =>
      col(Expressions.quoted(name)).as(source)
    }: _*)
  }

  /** Throws DataException and ParamException also where columns were not prepared as they are read. */
  override def columns(reading: Reading): DataColumns = {
    val columns =
      try DataColumns.resolve(schema, reading)
      catch {
        case error: DataException =>
          throw new DataException(
            s"${error.getMessage}; these are the columns that $path was prepared of",
            error
          )
      }
    files(columns)
    columns
  }

  /** The files stay. Throws DataException where one is not what was written. */
  override def shards[T](columns: DataColumns, reading: Reading, site: Site)(use: ShardSet => T): T = {
    if (!isPrivate) Session.interruptible(site.spark.sparkContext)(check())
    use(files(columns))
  }

  /** The same without the rows of a fold. Throws DataException where the fold has no rows, or the others none to train on, or
    * none for validation though there are to be some.
    */
  def without(fold: Int): PreparedRows = {
    val files = Json.items(manifest.get("files"))
    val others = files.filterNot(_.get("fold").asInt == fold)
    val (validation, train) = others.partition(_.get("isValidation").asBoolean)
    def refuse(lack: String): Nothing = throw new DataException(s"fold $fold $lack")
    if (others.length == files.length) refuse("has no rows: give it some, or lower numFolds")
    if (train.isEmpty)
      refuse("is all that there is to train on: give the other folds rows that are not for validation")
    if (validation.isEmpty && !manifest.get("split").isNull)
      refuse(
        "has all of the validation rows, so that a training without it has none: choose some in the other folds too, by " +
          "validationIndicatorCol or a larger validationFraction"
      )
    new PreparedRows(site, manifest, Some(fold), isPrivate)
  }

  /** Removes the directory. Throws StoreException. */
  def delete(): Unit = {
    val (parent, name) = place
    parent.ask(Site.question("remove").put("path", name))
  }

  /** Removes the directory; a failure is told and no more. */
  def remove(): Unit = {
    val (parent, name) = place
    parent.remove(name)
  }

  /** The directory that it lies in, and its name there. */
  private def place: (Site, String) = {
    val (parent, name) = path.splitAt(path.lastIndexOf('/'))
    (site.copy(work = site.work.copy(uri = parent)), name.tail)
  }

  /** The files for a fit that reads these columns. Throws ParamException where they are not for that. */
  private def files(columns: DataColumns): ShardSet = {
    val asked = Json.obj()
    asked.replace("spec", columns.specJson)
    asked.replace("split", Json.of(columns.split.map(_.json), "split"))
    asked.put("handleInvalid", columns.handleInvalid)
    asked.replace("withoutFold", Json.of(withoutFold, "withoutFold"))
    val question = about("preparedData")
    question.replace("asked", asked)
    // On this machine: it needs nothing of the directory.
    val data = Json.parse(site.work.ask(Json.text(question)))
    ShardSet(
      DataColumns.of(data.get("spec"), columns.split),
      Json.texts(data.get("train")).map(DataFile(_)),
      Json.texts(data.get("validation")).map(DataFile(_)),
      data.get("numRows").asLong,
      data.get("numValidationRows").asLong
    )
  }

  private def check(): Unit = {
    val changes = Json.texts(site.ask(about("preparedChanges")))
    for (change <- changes.headOption) {
      val more = if (changes.length > 1) s", and ${changes.length - 1} more" else ""
      throw new DataException(s"the prepared data has changed: $change$more; prepare the rows anew")
    }
  }

  /** A question about the files. */
  private def about(ask: String): ObjectNode = {
    val question = Site.question(ask)
    question.replace("prepared", manifest)
    question
  }
}

private[flambeau] object PreparedRows {
  private val log = LoggerFactory.getLogger("flambeau")

  /** The partition column with the number of a row's fold. */
  private val Fold = "flambeau_fold"
  private val Data = "data"

  /** What was prepared in a directory, by this or another process, in this or the other language. Throws DataException where
    * there is nothing, or what was not written to its end.
    */
  def open(spark: SparkSession, path: String): PreparedRows = {
    val work = WorkDirectory(WorkDirectory.uriOf(spark, "path", path), Settings.of(spark))
    val site = Site(spark, work, Session.isLocal(spark) || work.sees(work.path("manifest.json")))
    val found = site.ask(Site.question("readPrepared"))
    if (found.isNull)
      throw new DataException(
        s"$path holds no prepared data, or such that was not written to its end: remove it where there is something, and " +
          "write it with an estimator's prepare(df, path)"
      )
    def damaged(cause: Throwable): DataException = new DataException(
      s"$path: its manifest.json is damaged, or another version of flambeau wrote it: prepare the rows anew",
      cause
    )
    val manifest = found.get("prepared")
    if (manifest.isNull) throw damaged(null)
    checkTypes(path, manifest.get("schema"))
    val rows = new PreparedRows(site, manifest, withoutFold = None, isPrivate = false)
    try rows.schema
    catch { case NonFatal(error) => throw damaged(error) }
    rows
  }

  /** Writes the rows into the site's directory, which has no files yet, for fits that read any of the `asked` columns,
    * computing `df` once. With `fold`, a whole number of each row, fits may leave one out, and they are fits of the caller's
    * alone.
    *
    * Throws DataException as [[FrameRows.write]] does, and ParamException where the columns are split in more than one way, or
    * have more than one rule for invalid rows, or another writer of the directory was faster. Where writing fails, what was
    * written is removed.
    */
  def write(df: DataFrame, asked: Seq[DataColumns], site: Site, fold: Option[Column] = None): PreparedRows = {
    val began = System.nanoTime
    val (split, rule) = (commonSplit(asked), commonRule(asked))
    val selection = new Selection(asked.foldLeft(df)((rows, columns) => columns.valid(rows)))
    asked.foreach(selection.place)
    val partitions = fold.map(Fold -> _.cast("int")).toSeq ++ split.map(Split.Flag -> _.flag)
    // Of its own, so that two who write at once do not mix, nor remove what the other has.
    val own = s"$Data/${site.work.newId()}"
    try {
      val files = selection.save(partitions, site.work.path(own)).inputFiles.toSeq
      val draft = Json.obj()
      draft.replace("schema", Json.parse(schemaOf(df, selection, split).json))
      draft.replace("columns", Json.array(selection.columns.map(describe(df, _))))
      draft.replace("split", Json.of(split.map(_.json), "split"))
      draft.put("handleInvalid", rule)
      draft.put("seconds", (System.nanoTime - began) / 1e9)
      draft.replace("files", Json.strings(files.map(uri => uri.substring(uri.lastIndexOf(s"/$own/") + 1))))
      if (!site.ask(Site.question("readPrepared")).isNull)
        throw new ParamException(
          s"path: ${site.work.uri} was prepared by another meanwhile: give another path"
        )
      val question = Site.question("sealPrepared")
      question.replace("draft", draft)
      val manifest = site.ask(question)
      ShardSet.refuseNone(manifest.get("numRows").asLong, manifest.get("numValidationRows").asLong)
      new PreparedRows(site, manifest, withoutFold = None, isPrivate = fold.isDefined)
    } catch {
      case error: Throwable =>
        site.remove(own)
        removeEmpty(site)
        throw error
    }
  }

  /** How all of them split the rows; the first one's seed counts. */
  private def commonSplit(asked: Seq[DataColumns]): Option[Split] = {
    val ways = asked.map(_.split match {
      case Some(Split.Indicator(name))       => s"by validationIndicatorCol '$name'"
      case Some(Split.Fraction(fraction, _)) => s"by validationFraction $fraction"
      case None                              => "without validation rows"
    }).distinct
    if (ways.length > 1)
      throw new ParamException(
        "validationFraction and validationIndicatorCol are the same for all that is fitted on one copy of the rows, and here " +
          s"fits are asked for ${ways.mkString(" and ")}"
      )
    asked.head.split
  }

  /** What all of them do with invalid rows. */
  private def commonRule(asked: Seq[DataColumns]): String = {
    val rules = asked.map(_.handleInvalid).distinct
    if (rules.length > 1)
      throw new ParamException(
        "handleInvalid is the same for all that is fitted on one copy of the rows, and here fits are asked for " +
          s"${rules.map(rule => s"'$rule'").mkString(" and ")}: set one of them for all, or fit them apart"
      )
    rules.head
  }

  /** The fields that were read. */
  private def schemaOf(df: DataFrame, selection: Selection, split: Option[Split]): StructType = {
    val flag = split.collect { case Split.Indicator(name) => name }
    StructType((selection.columns.map(_.source) ++ flag).distinct.map(df.schema(_)))
  }

  /** What the manifest says of a column. */
  private def describe(df: DataFrame, column: WrittenColumn): ObjectNode = {
    val depth = Columns.depth(df.schema(column.source).dataType)
    val json = Json.obj()
      .put("name", column.name)
      .put("source", column.source)
      .put("role", column.role.name)
      .put("dtype", column.dtype)
      .put("depth", depth)
    // Arrays of arrays lie flat, and of all others the files tell.
    json.replace("shape", Json.of(column.shape.filter(_ => depth > 1), "shape"))
    json
  }

  /** Removes the directory of prepared rows, or what of it is empty. A failure is told and no more. */
  def removeEmpty(site: Site): Unit =
    try site.ask(Site.question("removeEmptyPrepared"))
    catch {
      case NonFatal(error) =>
        log.warn(s"${site.work.uri} could not be removed: ${Failures.firstLine(error)}")
    }

  /** Throws DataException for a schema with a column of a class other than Spark's vectors: Spark would load whatever the
    * directory names.
    */
  private def checkTypes(path: String, schema: JsonNode): Unit = {
    val named = schema.path("class").asText
    if (schema.path("type").asText == "udt" && !Columns.VectorTypes.contains(named))
      throw new DataException(
        s"$path: its manifest.json has a column of the class '$named', which is never prepared; allowed is " +
          s"${Columns.VectorTypes.head}; prepare the rows anew"
      )
    Json.items(schema).foreach(checkTypes(path, _))
  }
}
