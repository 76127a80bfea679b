package flambeau

import org.scalatest.funsuite.AnyFunSuite

class BuildSuite extends AnyFunSuite {
  test("the version is the workspace's", Matrix) {
    val cargo = scala.io.Source.fromFile("Cargo.toml")
    try assert(cargo.getLines().contains(s"""version = "${Build.version}""""))
    finally cargo.close()
  }
}
