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
        threads.submit(new Callable[NativeApi] {
          override def call(): NativeApi = NativeLibrary.api(none)
        })
      )
      assert(asked.map(_.get(120, TimeUnit.SECONDS)).toSet.size == 1)
    } finally threads.shutdownNow()
  }

  test("each class loader of a JVM loads its own library, over one libtorch") {
    NativeLibrary.api(none)
    for (_ <- 0 until 2) {
      val loader = new OwnFlambeau(getClass.getClassLoader)
      val library = loader.loadClass("flambeau.jni.NativeLibrary$")
      val module = library.getField("MODULE$").get(null)
      val api = library.getMethod("api", classOf[Function1[_, _]]).invoke(module, none)
      assert(api.getClass != classOf[NativeApi])
      val get = api.getClass.getMethod("storeGet", classOf[String], classOf[String])
      val error =
        intercept[java.lang.reflect.InvocationTargetException](get.invoke(api, "{}", "/nowhere/file"))
      assert(error.getCause.getClass.getName == "flambeau.StoreException")
      assert(error.getCause.getClass.getClassLoader == loader)
    }
    val copies = mapped().filter(_.endsWith("libflambeau_jni.so"))
    assert(copies.size >= 3)
    assert(mapped().count(_.endsWith("libtorch_cpu.so")) == 1)
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

  test("files are extracted where the configuration says, for the owner alone") {
    val parent = Files.createTempDirectory("flambeau-test-")
    val made = NativeFiles.extract(Some(parent.resolve("below").toString))
    assert(made.startsWith(parent.resolve("below")))
    assert(Files.isExecutable(made.resolve("flambeau-worker")))
    assert(Files.isRegularFile(made.resolve("libflambeau_jni.so")))
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
    val java = Paths.get(System.getProperty("java.home"), "bin", "java").toString
    val output = Files.createTempFile("flambeau-test-", "")
    val command =
      Seq(java, "-cp", System.getProperty("java.class.path"), "flambeau.jni.ExtractAndEnd", parent.toString)
    val process =
      new ProcessBuilder(command: _*).redirectErrorStream(true).redirectOutput(output.toFile).start()
    assert(process.waitFor(60, TimeUnit.SECONDS))
    val text = new String(Files.readAllBytes(output), UTF_8)
    assert(process.exitValue() == 0, text)
    assert(text.contains(s"$parent/flambeau-"), text)
    assert(parent.toFile.list().isEmpty)
  }

  /** The files that this process has mapped. */
  private def mapped(): Set[String] =
    new String(Files.readAllBytes(Paths.get("/proc/self/maps")), UTF_8).linesIterator
      .filter(_.contains('/'))
      .map(line => line.substring(line.indexOf('/')))
      .toSet
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
