package flambeau.internal.util

/** Texts without what is for nobody's eyes. */
private[flambeau] object Redacted {

  // The user of an abfss URI is a container.
  private val Secrets =
    """(?<=://)(?:(?<!abfs://)(?<!abfss://)[^/\s]*|[^/@\s]*:[^/\s]*)@|\?[^\s'"]*""".r

  /** A text whose URIs have neither a user with a password, nor a token in a user's place, nor a query, as a signed URL
    * has.
    */
  def apply(text: String): String = Secrets.replaceAllIn(text, "")
}
