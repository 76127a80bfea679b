package flambeau.internal.rows

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.TextNode
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
    rows: Option[BitmapRange] = None,
    values: Map[String, String] = Map.empty
) {

  /** The file as the training job names it. */
  def json: JsonNode = rows.fold[JsonNode](new TextNode(uri)) { rows =>
    val bitmap = Json.obj().put("uri", rows.uri).put("offset", rows.offset).put("length", rows.length)
    val file = Json.obj().put("uri", uri)
    file.replace("rows", bitmap)
    if (values.nonEmpty) file.replace("values", Json.of(values, "values"))
    file
  }
}

/** Bytes of a file in which each bit, the lowest of a byte first, says whether a row of another file is read. */
private[flambeau] final case class BitmapRange(uri: String, offset: Long, length: Long)

private[flambeau] object DataFile {

  /** URIs by directory, then by name: Spark names files by the number of the partition that wrote them. */
  val order: Ordering[String] = Ordering.by((uri: String) => uri.splitAt(uri.lastIndexOf('/') + 1))

  /** The files that `df` reads, whole, in that order. */
  def of(df: DataFrame): Seq[DataFile] = df.inputFiles.toSeq.sorted(order).map(DataFile(_))
}
