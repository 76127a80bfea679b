package flambeau.internal.mlflow

import java.io.{IOException, InputStream, OutputStream}
import java.net.{HttpURLConnection, URI, URLDecoder, URLEncoder}
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path, StandardCopyOption}
import java.util.Base64

import scala.util.{Failure, Try}

import com.fasterxml.jackson.databind.JsonNode
import flambeau.{GeneralException, ParamException}
import flambeau.internal.util.{Json, Redacted}

/** A tracking server of MLflow's, by its REST interface.
  *
  * Where it does not answer, or says that it cannot now, it is asked twice more within three seconds. Calls wait up to ten
  * seconds for a connection and two minutes for an answer. They throw TrackingException for what the server refuses and
  * IOException where there is no answer.
  *
  * @param base
  *   its URI, without user and without a slash at its end
  * @param authorization
  *   the header of that name
  */
private[flambeau] final class TrackingServer private (base: String, authorization: Option[String]) {
  import TrackingServer._

  /** What a method that reads answers. */
  def get(method: String, query: (String, String)*): JsonNode = {
    val text = query.map { case (name, value) => s"$name=${URLEncoder.encode(value, "UTF-8")}" }
    json("GET", s"$base$Api/mlflow/$method?${text.mkString("&")}", None)
  }

  /** What a method that writes answers. */
  def post(method: String, body: JsonNode): JsonNode = {
    val bytes = Json.text(body).getBytes(UTF_8)
    json(
      "POST",
      s"$base$Api/mlflow/$method",
      Some(Body(bytes.length.toLong, "application/json", _.write(bytes)))
    )
  }

  /** A run, as the server tells of it. */
  def run(id: String): JsonNode = get("runs/get", "run_id" -> id).get("run")

  /** Stores a file as an artifact. */
  def put(artifact: String, file: Path): Unit =
    json("PUT", artifact, Some(Body(Files.size(file), "application/octet-stream", Files.copy(file, _))))

  /** Copies what is in a directory of artifacts into `folder`; nothing where there is none. */
  def download(artifact: String, folder: Path): Unit = {
    val (endpoint, path) = artifact.splitAt(artifact.indexOf(Artifacts) + Artifacts.length)
    // The path is a URI's, whose characters are encoded as in one already.
    val plain = URLDecoder.decode(path.stripPrefix("/").replace("+", "%2B"), "UTF-8")
    val listed = json("GET", s"$endpoint?path=${URLEncoder.encode(plain, "UTF-8")}", None)
    for (entry <- Json.items(listed.get("files"))) {
      val path = entry.get("path").asText
      val name = path.substring(path.lastIndexOf('/') + 1)
      if (Set("", ".", "..")(name))
        throw new GeneralException(s"${Redacted(artifact)} holds '$path', which is no file's name")
      val target = folder.resolve(name)
      val below = s"$artifact/${segment(name)}"
      if (entry.path("is_dir").asBoolean) download(below, Files.createDirectories(target))
      else asked("GET", below, None)(Files.copy(_, target, StandardCopyOption.REPLACE_EXISTING))
    }
  }

  /** Where the server takes the artifacts below a URI that it has given. Throws GeneralException where it takes none: their
    * store is for clients to write to then.
    */
  def artifacts(uri: String): String = {
    val parsed = new URI(uri)
    if (parsed.getScheme != "mlflow-artifacts")
      throw new GeneralException(
        s"the server keeps artifacts in ${Redacted(uri)}, which Scala does not write to: start it without " +
          "--no-serve-artifacts, so that it takes them itself"
      )
    val server = new URI(base)
    val host = Option(parsed.getRawAuthority).getOrElse(server.getRawAuthority)
    val path = Option(server.getRawPath).getOrElse("")
    s"${server.getScheme}://$host$path$Artifacts/${parsed.getRawPath.dropWhile(_ == '/')}"
  }

  private def json(method: String, url: String, body: Option[Body]): JsonNode =
    asked(method, url, body)(stream => Json.parse(text(stream), s"the answer of ${Redacted(url)}"))

  private def asked[T](method: String, url: String, body: Option[Body])(read: InputStream => T): T = {
    var answer = Try(ask(method, url, body)(read))
    for (millis <- PauseMillis if isTransient(answer)) {
      Thread.sleep(millis)
      answer = Try(ask(method, url, body)(read))
    }
    answer.get
  }

  private def ask[T](method: String, url: String, body: Option[Body])(read: InputStream => T): T = {
    val connection = URI.create(url).toURL.openConnection().asInstanceOf[HttpURLConnection]
    connection.setRequestMethod(method)
    connection.setConnectTimeout(ConnectMillis)
    connection.setReadTimeout(ReadMillis)
    authorization.foreach(connection.setRequestProperty("Authorization", _))
    for (Body(size, kind, write) <- body) {
      connection.setDoOutput(true)
      connection.setRequestProperty("Content-Type", kind)
      // Else all of a file would be in memory; of what is streamed Java does not tell that it was not authorized.
      if (method == "PUT") connection.setFixedLengthStreamingMode(size)
      val stream = connection.getOutputStream
      try write(stream)
      finally stream.close()
    }
    val status = connection.getResponseCode
    if (status / 100 == 2) {
      val stream = connection.getInputStream
      try read(stream)
      finally stream.close()
    } else {
      val told = Try(Json.parse(text(connection.getErrorStream))).getOrElse(Json.obj())
      throw new TrackingException(
        status,
        told.path("error_code").asText,
        s"${Redacted(url)} answers $status${Option(told.get("message")).fold("")(message => s": ${message.asText}")}"
      )
    }
  }
}

private[flambeau] object TrackingServer {
  private val Api = "/api/2.0"
  private val Artifacts = s"$Api/mlflow-artifacts/artifacts"
  private val ConnectMillis = 10000

  /** That of MLflow's own clients. */
  private val ReadMillis = 120000

  private val PauseMillis = Seq(1000L, 2000L)

  /** The answers after which MLflow's own clients ask again. */
  private val TransientStatuses = Set(408, 429, 500, 502, 503, 504)

  /** A name as a segment of a URI's path. */
  def segment(name: String): String = URLEncoder.encode(name, "UTF-8").replace("+", "%20")

  private final case class Body(size: Long, kind: String, write: OutputStream => Unit)

  /** The server at a URI, with the credentials that are in it, or in MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD,
    * or in MLFLOW_TRACKING_TOKEN. Throws ParamException for a URI that is no server's.
    */
  def of(uri: String): TrackingServer = {
    if (uri.matches("databricks(-uc)?(:.*)?"))
      throw new ParamException(
        s"the tracking URI is '$uri', and Scala logs to servers of MLflow's own alone: give the http or https URI of " +
          "one, or fit in PySpark with flambeau.mlflow, which logs to Databricks"
      )
    val parsed = Try(new URI(uri)).toOption.filter(found =>
      Set("http", "https").contains(found.getScheme) && found.getRawAuthority != null
    )
    val server = parsed.getOrElse(
      throw new ParamException(
        s"the tracking URI must be that of a server, http://... or https://..., got '${Redacted(uri)}': start " +
          "`mlflow server`, with the files or the database as its --backend-store-uri"
      )
    )
    def variable(name: String): Option[String] = sys.env.get(s"MLFLOW_TRACKING_$name").filter(_.nonEmpty)
    val named = for (user <- variable("USERNAME"); password <- variable("PASSWORD")) yield s"$user:$password"
    val basic = Option(server.getUserInfo).orElse(named).map { pair =>
      s"Basic ${Base64.getEncoder.encodeToString(pair.getBytes(UTF_8))}"
    }
    val authority = server.getRawAuthority.replaceFirst("^.*@", "")
    val path = Option(server.getRawPath).getOrElse("").replaceAll("/+$", "")
    new TrackingServer(
      s"${server.getScheme}://$authority$path",
      basic.orElse(variable("TOKEN").map(token => s"Bearer $token"))
    )
  }

  private def isTransient(answer: Try[_]): Boolean = answer match {
    case Failure(error: TrackingException) => TransientStatuses(error.status)
    case Failure(_: IOException)           => true
    case _                                 => false
  }

  private def text(stream: InputStream): String =
    if (stream == null) ""
    else
      try scala.io.Source.fromInputStream(stream, "UTF-8").mkString
      finally stream.close()
}

/** A tracking server's refusal.
  *
  * @param status
  *   that of HTTP
  * @param code
  *   MLflow's own name of the reason; empty where it gives none
  */
private[flambeau] final class TrackingException(val status: Int, val code: String, message: String)
    extends IOException(message)
