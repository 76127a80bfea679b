package flambeau

import org.apache.spark.sql.SparkSession
import org.scalatest.funsuite.AnyFunSuite

class BuildSuite extends AnyFunSuite {
  test("the version is the workspace's") {
    val cargo = scala.io.Source.fromFile("Cargo.toml")
    try assert(cargo.getLines().contains(s"""version = "${Build.version}""""))
    finally cargo.close()
  }

  test("a Spark session starts on this class path") {
    val spark = SparkSession.builder().master("local[2]").getOrCreate()
    try assert(spark.range(10).count() == 10)
    finally spark.stop()
  }
}
