package flambeau.internal.rows

import java.net.URLDecoder

import scala.util.Try

/** The `key=value` directories in files' paths. */
private[flambeau] object PartitionPath {

  /** The names of the partition columns of files below `root`. */
  def columns(files: Seq[String], root: String): Set[String] = {
    val base = root.replaceAll("/+$", "").split('/').lastOption.getOrElse("")
    val directories = files.map(decoded).flatMap { uri =>
      val at = uri.indexOf(s"/$base/")
      if (at < 0) Nil else uri.substring(at + base.length + 2).split('/').dropRight(1).toSeq
    }
    directories.filter(_.contains('=')).map(part => part.substring(0, part.indexOf('='))).toSet
  }

  /** The value of a partition column in a file's path; none where the path has none. */
  def value(uri: String, name: String): Option[String] =
    uri.split('/').collectFirst {
      case part if part.contains('=') && decoded(part.substring(0, part.indexOf('='))) == name =>
        decoded(part.substring(part.indexOf('=') + 1))
    }

  private def decoded(text: String): String =
    Try(URLDecoder.decode(text.replace("+", "%2B"), "UTF-8")).getOrElse(text)
}
