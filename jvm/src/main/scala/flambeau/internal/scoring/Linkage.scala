package flambeau.internal.scoring

import java.io.{BufferedInputStream, DataInputStream, IOException, InputStream}
import java.lang.invoke.MethodType
import java.lang.reflect.{Method, Modifier}

import scala.collection.mutable

/** Whether Spark SQL, as it runs here, has what classes were compiled against: the JVM finds that out late, member by member,
  * when a query runs in the executors.
  */
private[flambeau] object Linkage {
  private val Ours = Seq("flambeau/", "org/apache/spark/sql/flambeau/")

  /** The first thing of Spark SQL's that is not there, of what `root` and the classes of Flambeau's that it leads to use.
    *
    * @param root
    *   the name of a class, with dots
    */
  def missing(root: String, loader: ClassLoader): Option[String] = {
    val known = mutable.Set(root.replace('.', '/'))
    val waiting = mutable.Queue(known.toSeq: _*)
    var found = Option.empty[String]
    while (found.isEmpty && waiting.nonEmpty) {
      val name = waiting.dequeue()
      found =
        try {
          val used = Used.of(loader.getResourceAsStream(s"$name.class"))
          for (other <- used.classes if Ours.exists(other.startsWith) && known.add(other))
            waiting.enqueue(other)
          used.members.find(!_.isThere(loader)).map(_.toString).orElse(unimplemented(load(name, loader)))
        } catch {
          case error @ (_: LinkageError | _: ClassNotFoundException | _: IOException) => Some(error.toString)
        }
    }
    found
  }

  /** A method that a class of ours has to have for Spark, and has not. */
  private def unimplemented(owner: Class[_]): Option[String] =
    if (Modifier.isAbstract(owner.getModifiers)) None
    else
      unlessUnknown(Option.empty[String]) {
        val (asked, there) = ancestors(owner).flatMap(_.getDeclaredMethods).partition(method =>
          Modifier.isAbstract(method.getModifiers)
        )
        val known = there.map(signature).toSet
        asked.find(method => !known(signature(method))).map(_.toString)
      }

  /** What reflection finds; `otherwise` where it finds nothing, since it looks up the types of all of a class's members, of
    * which those that nobody uses may be missing.
    */
  private def unlessUnknown[T](otherwise: T)(found: => T): T =
    try found
    catch { case _: LinkageError => otherwise }

  private def signature(method: Method): String =
    method.getName + descriptor(method.getReturnType, method.getParameterTypes)

  private def load(name: String, loader: ClassLoader): Class[_] =
    loader.loadClass(name.replace('/', '.'))

  private def ancestors(owner: Class[_]): Seq[Class[_]] =
    (owner +: (Option[Class[_]](owner.getSuperclass) ++ owner.getInterfaces).toSeq.flatMap(
      ancestors
    )).distinct

  private def descriptor(returned: Class[_], arguments: Array[Class[_]]): String =
    MethodType.methodType(returned, arguments).toMethodDescriptorString

  /** A method or a field of Spark SQL's, as a class file names it. */
  private final case class Member(owner: String, name: String, descriptor: String) {
    override def toString: String = s"${owner.replace('/', '.')}.$name$descriptor"

    def isThere(loader: ClassLoader): Boolean = {
      val owners = ancestors(load(owner, loader)) :+ classOf[Object]
      unlessUnknown(true)(owners.exists { one =>
        if (name == "<init>")
          one.getDeclaredConstructors.exists(made =>
            Linkage.descriptor(classOf[Unit], made.getParameterTypes) == descriptor
          )
        else if (descriptor.startsWith("(")) one.getDeclaredMethods.exists(signature(_) == name + descriptor)
        else one.getDeclaredFields.exists(_.getName == name)
      })
    }
  }

  /** What a class uses: the classes, and the members of Spark SQL's. */
  private final case class Used(classes: Seq[String], members: Seq[Member])

  private object Used {

    /** Reads the constants of a class file, as the JVM's specification has them (4.4). */
    def of(file: InputStream): Used = {
      val in = new DataInputStream(new BufferedInputStream(file))
      val texts = mutable.Map.empty[Int, String]
      val pairs = mutable.Map.empty[Int, (Int, Int)]
      val classes = mutable.Map.empty[Int, Int]
      val members = mutable.Buffer.empty[(Int, Int)]
      try {
        in.skipBytes(8)
        val count = in.readUnsignedShort()
        var index = 1
        while (index < count) {
          val tag = in.readUnsignedByte()
          tag match {
            case 1           => texts(index) = in.readUTF()
            case 7           => classes(index) = in.readUnsignedShort()
            case 9 | 10 | 11 => members += in.readUnsignedShort() -> in.readUnsignedShort()
            case 12          => pairs(index) = in.readUnsignedShort() -> in.readUnsignedShort()
            case 5 | 6       => in.readLong()
            case 8 | 16      => in.readUnsignedShort()
            case 15          => in.skipBytes(3)
            case _           => in.readInt()
          }
          index += (if (tag == 5 || tag == 6) 2 else 1)
        }
      } finally in.close()
      def nameOf(place: Int): String = texts(classes(place))
      Used(
        classes.values.map(texts).toSeq,
        members.toSeq.collect {
          case (owner, pair) if nameOf(owner).startsWith("org/apache/spark/sql/") =>
            Member(nameOf(owner), texts(pairs(pair)._1), texts(pairs(pair)._2))
        }.distinct
      )
    }
  }
}
