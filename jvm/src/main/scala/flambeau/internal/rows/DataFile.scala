package flambeau.internal.rows

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.{LongNode, TextNode}
import flambeau.internal.util.Json
import org.apache.spark.sql.DataFrame

/** A Parquet file of a training job.
  *
  * @param rows
  *   which of its rows are read; none for all
  * @param values
  *   of columns that have one value in all of these, and are not in it
  */
private[flambeau] final case class DataFile(
    uri: String,
    rows: Option[FileRows] = None,
    values: Map[String, String] = Map.empty
) {

  /** The file as the training job names it. */
  def json: JsonNode = rows.fold[JsonNode](new TextNode(uri)) { rows =>
    val file = Json.obj().put("uri", uri)
    file.replace("rows", rows.json)
    if (values.nonEmpty) file.replace("values", Json.of(values, "values"))
    file
  }
}

/** Which rows of a file are read. */
private[flambeau] sealed trait FileRows {

  /** These as the training job names them. */
  def json: JsonNode
}

/** So many, from the file's first on, which may be all. */
private[flambeau] final case class FirstRows(count: Long) extends FileRows {
  override def json: JsonNode = LongNode.valueOf(count)
}

/** Bytes of a file in which each bit, the lowest of a byte first, says whether a row of another file is read. */
private[flambeau] final case class BitmapRange(uri: String, offset: Long, length: Long) extends FileRows {
  override def json: JsonNode = Json.obj().put("uri", uri).put("offset", offset).put("length", length)
}

private[flambeau] object DataFile {

  /** URIs by directory, then by name: Spark names files by the number of the partition that wrote them. */
  val order: Ordering[String] = Ordering.by((uri: String) => uri.splitAt(uri.lastIndexOf('/') + 1))

  /** The files that `df` reads, whole, in that order. */
  def of(df: DataFrame): Seq[DataFile] = df.inputFiles.toSeq.sorted(order).map(DataFile(_))
}
