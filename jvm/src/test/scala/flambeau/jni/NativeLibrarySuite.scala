package flambeau.jni

import java.io.File
import java.net.{URL, URLClassLoader}
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.attribute.PosixFilePermissions
import java.nio.file.{Files, Path, Paths}
import java.util.concurrent.{Callable, Executors, TimeUnit}

import flambeau.FlambeauException
import org.scalatest.funsuite.AnyFunSuite

class NativeLibrarySuite extends AnyFunSuite {
  private val none: String => Option[String] = _ => None

  test("many threads that ask at once get one instance") {
    val threads = Executors.newFixedThreadPool(8)
    try {
      val asked = (0 until 8).map(_ =>
        threads.submit(new Callable[TorchApi] {
          override def call(): TorchApi = NativeLibrary.torch(none)
        })
      )
      assert(asked.map(_.get(120, TimeUnit.SECONDS)).toSet.size == 1)
    } finally threads.shutdownNow()
  }

  test("each class loader of a JVM loads its own library, over one libtorch") {
    NativeLibrary.torch(none)
    for (_ <- 0 until 2) {
      val loader = new OwnFlambeau(getClass.getClassLoader)
      val library = loader.loadClass("flambeau.jni.NativeLibrary$")
      val module = library.getField("MODULE$").get(null)
      def own(name: String): AnyRef = library.getMethod(name, classOf[Function1[_, _]]).invoke(module, none)
      def thrown(call: => Any): Throwable =
        intercept[java.lang.reflect.InvocationTargetException](call).getCause
      val (store, torch) = (own("store"), own("torch"))
      val get = store.getClass.getMethod("get", classOf[String], classOf[String])
      val close = torch.getClass.getMethod("closeScorer", classOf[Long])
      val errors = Seq(
        "flambeau.StoreException" -> thrown(get.invoke(store, "{}", "/nowhere/file")),
        "flambeau.GeneralException" -> thrown(close.invoke(torch, Long.box(0)))
      )
      for ((name, error) <- errors) {
        assert(error.getClass.getName == name)
        assert(error.getClass.getClassLoader == loader)
      }
    }
    // This loader's own are there where another suite has asked for them.
    for ((library, num) <- Seq("libflambeau_jni_torch.so" -> 3, "libflambeau_jni_store.so" -> 2))
      assert(Mapped.files().count(_.endsWith(library)) >= num)
    assert(Mapped.files().count(_.endsWith("libtorch_cpu.so")) == 1)
  }

  test("a directory without libtorch is one sentence that says what to set") {
    val error =
      intercept[FlambeauException](NativeLibrary.libtorch(NativeFiles.worker(none), Some("/nowhere")))
    assert(error.getMessage.contains("/nowhere"))
    assert(error.getMessage.contains("spark.flambeau.libtorch"))
    assert(error.getMessage.linesIterator.size == 1)
  }

  test("libtorch is found with its version, by absolute paths") {
    val libraries = NativeLibrary.libtorch(NativeFiles.worker(none), None)
    assert(libraries.map(path => Paths.get(path).getFileName.toString) == Seq("libc10.so", "libtorch_cpu.so"))
    assert(libraries.forall(path => Paths.get(path).isAbsolute && Files.isRegularFile(Paths.get(path))))
  }

  test("files are read without libtorch, which is told of and found where it is asked for") {
    val text = outputOf("flambeau.jni.FilesWithoutLibtorch", "/nowhere")
    assert(text.contains("read: text") && text.contains("libtorch mapped: false"), text)
    assert(text.contains("/nowhere") && text.contains("spark.flambeau.libtorch"), text)
    assert(text.contains("libtorch mapped then: true"), text)
  }

  test("files are extracted where the configuration says, for the owner alone") {
    val parent = Files.createTempDirectory("flambeau-test-")
    val made = NativeFiles.extract(Some(parent.resolve("below").toString))
    assert(made.startsWith(parent.resolve("below")))
    assert(Files.isExecutable(made.resolve("flambeau-worker")))
    for (library <- Seq("libflambeau_jni_store.so", "libflambeau_jni_torch.so"))
      assert(Files.isRegularFile(made.resolve(library)))
    assert(PosixFilePermissions.toString(Files.getPosixFilePermissions(made)) == "rwx------")
    NativeFiles.remove(made)
    assert(!Files.exists(made))
  }

  test("a directory that cannot be written to is a sentence that says what to set") {
    val file = Files.createTempFile("flambeau-test-", "")
    val error = intercept[FlambeauException](NativeFiles.extract(Some(file.resolve("below").toString)))
    assert(error.getMessage.contains("spark.flambeau.nativeDir"))
    Files.delete(file)
  }

  test("a JVM removes at its end what it extracted") {
    val parent = Files.createTempDirectory("flambeau-test-")
    val text = outputOf("flambeau.jni.ExtractAndEnd", parent.toString)
    assert(text.contains(s"$parent/flambeau-"), text)
    assert(parent.toFile.list().isEmpty)
  }

  /** What a JVM of its own prints, which must end well. */
  private def outputOf(main: String, argument: String): String = {
    val java = Paths.get(System.getProperty("java.home"), "bin", "java").toString
    val output = Files.createTempFile("flambeau-test-", "")
    val command = Seq(java, "-cp", System.getProperty("java.class.path"), main, argument)
    val process =
      new ProcessBuilder(command: _*).redirectErrorStream(true).redirectOutput(output.toFile).start()
    assert(process.waitFor(60, TimeUnit.SECONDS))
    val text = new String(Files.readAllBytes(output), UTF_8)
    assert(process.exitValue() == 0, text)
    text
  }
}

/** A class loader with Flambeau's classes of its own, and all others its parent's. */
private final class OwnFlambeau(parent: ClassLoader) extends URLClassLoader(OwnFlambeau.path, parent) {
  override def loadClass(name: String, resolve: Boolean): Class[_] =
    if (!name.startsWith("flambeau.")) super.loadClass(name, resolve)
    else getClassLoadingLock(name).synchronized(Option(findLoadedClass(name)).getOrElse(findClass(name)))
}

private object OwnFlambeau {
  private def path: Array[URL] =
    System.getProperty("java.class.path").split(File.pathSeparator).map(entry => new File(entry).toURI.toURL)
}

/** Extracts the native files and says where. */
object ExtractAndEnd {
  def main(arguments: Array[String]): Unit = {
    val worker: Path =
      NativeFiles.worker(key => if (key == NativeFiles.NativeDirKey) Some(arguments(0)) else None)
    println(worker)
  }
}

/** The files that this process has mapped. */
private object Mapped {
  def files(): Set[String] =
    new String(Files.readAllBytes(Paths.get("/proc/self/maps")), UTF_8).linesIterator
      .filter(_.contains('/'))
      .map(line => line.substring(line.indexOf('/')))
      .toSet
}

/** Reads a file where the configuration names a directory without libtorch, and says so. */
object FilesWithoutLibtorch {
  def main(arguments: Array[String]): Unit = {
    val conf = (key: String) => if (key == NativeLibrary.LibtorchKey) Some(arguments(0)) else None
    val file = Files.createTempFile("flambeau-test-", "")
    Files.write(file, "text".getBytes(UTF_8))
    println("read: " + new String(NativeLibrary.store(conf).get("{}", file.toString), UTF_8))
    Files.delete(file)
    println("libtorch mapped: " + Mapped.files().exists(_.contains("libtorch")))
    try NativeLibrary.torch(conf)
    catch { case error: FlambeauException => println(error.getMessage) }
    NativeLibrary.torch(_ => None)
    println("libtorch mapped then: " + Mapped.files().exists(_.contains("libtorch_cpu.so")))
  }
}
