package flambeau

import java.io.{PrintWriter, StringWriter}
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Paths}

import org.scalatest.funsuite.AnyFunSuite

class ErrorsSuite extends AnyFunSuite {
  private val page = new String(Files.readAllBytes(Paths.get("docs/errors.md")), UTF_8)

  test("a stack trace names the part of the errors page that names the exception") {
    val text = "it went wrong"
    val all = Seq[FlambeauException](
      new GeneralException(text),
      new ParamException(text),
      new RunInUseException(text),
      new DataException(text),
      new StoreException(text),
      new TransientStoreException(text),
      new ClusterException(text, null),
      new WorkerException(text, None, None, None, None),
      new WorkerLostException(text, None, None, None, None),
      new ListenerException(null, new RuntimeException(text))
    )
    for (error <- all) {
      val trace = new StringWriter
      error.printStackTrace(new PrintWriter(trace))
      val first = trace.toString.linesIterator.next()
      val told = ".* \\(see (\\w+) on the errors page of Flambeau's documentation\\)".r
      first match {
        case told(part) =>
          val text = page.split("\n## ").find(_.startsWith(s"$part\n"))
          assert(text.exists(_.contains(s"`${error.getClass.getSimpleName}`")), first)
        case _ => fail(first)
      }
      assert(error.getMessage.startsWith(text) || error.getMessage.startsWith("RuntimeException"), error)
    }
  }
}
