package flambeau.jni

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path}

import flambeau.internal.util.Json
import flambeau.{FlambeauException, StoreException}
import org.scalatest.funsuite.AnyFunSuite

class StoreApiSuite extends AnyFunSuite {
  private lazy val api = NativeLibrary.store(_ => None)

  private def temporary(run: Path => Unit): Unit = {
    val folder = Files.createTempDirectory("flambeau-test-")
    try run(folder)
    finally api.deletePrefix("{}", folder.toString)
  }

  test("files are written, read and removed") {
    temporary { folder =>
      val file = folder.resolve("a/b.txt").toString
      api.put("{}", file, "text".getBytes(UTF_8))
      assert(new String(Files.readAllBytes(folder.resolve("a/b.txt")), UTF_8) == "text")
      assert(new String(api.get("{}", file), UTF_8) == "text")
      assert(api.size("{}", file) == 4)

      val copy = folder.resolve("copy.txt")
      api.getToFile("{}", file, copy.toString)
      api.putFile("{}", folder.resolve("c.txt").toString, copy.toString)
      assert(Files.size(folder.resolve("c.txt")) == 4)
      assert(api.list("{}", folder.toString) == Json.text(Json.strings(Seq(
        file,
        s"$folder/c.txt",
        s"$copy"
      ))))
      assert(api.list("{}", s"$folder/nothing") == "[]")

      api.deletePrefix("{}", folder.resolve("a").toString)
      assert(api.size("{}", file) == -1 && Files.exists(copy))
    }
  }

  test("what is not there, a scheme or an option that does not exist are StoreExceptions") {
    val missing = intercept[StoreException](api.get("{}", "/nowhere/file"))
    assert(missing.getMessage.contains("/nowhere/file"))
    val scheme = intercept[StoreException](api.get("{}", "ftp://host/file"))
    assert(scheme.getMessage.contains("ftp"))
    val option = intercept[StoreException](api.size("""{"no_such_option":"1"}""", "/nowhere"))
    assert(option.getMessage.contains("no_such_option"))
    val text = intercept[FlambeauException](api.size("[]", "/nowhere"))
    assert(text.getMessage.contains("the store's options"))
  }

  test("an error's cause is the exception's cause") {
    temporary { folder =>
      val error = intercept[StoreException](api.get("{}", folder.toString))
      assert(error.getMessage.contains(folder.toString))
      assert(error.getCause.getMessage.contains("Is a directory"))
    }
  }

  test("null arguments are exceptions") {
    intercept[RuntimeException](api.get("{}", null))
  }

  test("the supervisor answers, and says what it cannot read") {
    temporary { folder =>
      val question = """{"ask":"newestCheckpoint","attempts":["a","b"]}"""
      assert(api.supervise("{}", folder.toString, question) == "null")
    }
    val error = intercept[FlambeauException](api.supervise("{}", "/nowhere", """{"ask":"theTime"}"""))
    assert(error.getMessage.contains("unknown variant `theTime`"), error.getMessage)
  }
}
