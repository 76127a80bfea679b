package flambeau

import java.nio.file.{Files, Path}

import org.apache.spark.sql.SparkSession
import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

/** A suite with a local Spark on two cores, and a directory that is removed at the end. */
trait SparkSuite extends AnyFunSuite with BeforeAndAfterAll {

  /** The session, which all suites of a JVM share. */
  lazy val spark: SparkSession = SparkSession
    .builder()
    .master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.warehouse.dir", directory.resolve("warehouse").toString)
    .getOrCreate()

  /** A directory of this suite's own. */
  lazy val directory: Path = Files.createTempDirectory("flambeau-test-")

  /** What a suite calls may ask for the session that there is before it has asked for this one. */
  override def beforeAll(): Unit = {
    super.beforeAll()
    SparkSession.setActiveSession(spark)
  }

  override def afterAll(): Unit = {
    SavedModels.remove(directory)
    super.afterAll()
  }

  /** A path in the suite's directory. */
  def path(name: String): String = directory.resolve(name).toString

  /** The exception of this class among a failure's causes. */
  def causeOf[T <: Throwable](kind: Class[T])(action: => Any): T = {
    val error = intercept[Throwable](action)
    val found = Iterator.iterate(error)(_.getCause).takeWhile(_ != null).find(kind.isInstance)
    kind.cast(found.getOrElse(fail(s"no ${kind.getSimpleName} among the causes", error)))
  }
}
