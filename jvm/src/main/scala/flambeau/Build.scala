package flambeau

import java.util.Properties

/** What this build of Flambeau is: its version, and what it was compiled for. */
object Build {
  private val properties = {
    val properties = new Properties
    val stream = getClass.getResourceAsStream("/flambeau/build.properties")
    try properties.load(stream)
    finally stream.close()
    properties
  }

  /** Flambeau's version, as `0.1.0`. */
  val version: String = properties.getProperty("version")

  /** The release of libtorch that the native parts bind. */
  val torch: String = properties.getProperty("torch")
}
