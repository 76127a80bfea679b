package flambeau.jni

import flambeau.ParamException
import flambeau.internal.session.TaskGpus
import flambeau.internal.util.{Json, Machine}
import org.apache.spark.TaskContext
import org.slf4j.LoggerFactory

/** The GPUs that this process sees, by UUID and in the order of their numbers.
  *
  * @param obstacle
  *   why libtorch computes on none of them, where it does not
  */
private[jni] final case class Gpus(uuids: Seq[String], obstacle: Option[String]) {

  /** The number of the one that a task computes on; none for the CPU.
    *
    * Throws ParamException where libtorch computes on none and the device is `cuda`, and where the one that Spark assigned is
    * not there.
    *
    * @param device
    *   the param
    * @param assigned
    *   the addresses of those that Spark assigned to the task: numbers, or UUIDs
    * @param task
    *   the task's number, by which those without an assigned one are dealt out
    */
  def choose(device: String, assigned: Option[Seq[String]], task: Int): Option[Int] =
    (device, obstacle) match {
      case ("cpu", _) => None
      case ("cuda", Some(reason)) =>
        throw new ParamException(
          s"device is 'cuda', and libtorch can use no GPU on ${Machine.hostName}: $reason; mend that on each machine that " +
            "scores, or set device to 'cpu', or to 'auto', which takes the CPU there"
        )
      case (_, Some(reason)) =>
        if (uuids.nonEmpty || assigned.isDefined)
          Gpus.log.warn(s"scoring on the CPU, since libtorch cannot use the GPUs of this machine: $reason")
        None
      case (_, None) => Some(assigned.map(_.head).fold(task % uuids.length)(numberOf))
    }

  /** The number of an address. */
  private def numberOf(address: String): Int = {
    val names = if (address.forall(_.isDigit)) uuids.indices.map(_.toString) else uuids
    val index = names.indexWhere(Gpus.plain(_) == Gpus.plain(address))
    if (index < 0)
      throw new ParamException(
        s"Spark assigned the GPU $address to a task on ${Machine.hostName}, whose process sees ${names.mkString(", ")} " +
          s"(CUDA_VISIBLE_DEVICES is ${sys.env.getOrElse("CUDA_VISIBLE_DEVICES", "not set")}): mend the script that " +
          "tells Spark the addresses, or set device to 'cpu'"
      )
    index
  }
}

private[jni] object Gpus {
  private val log = LoggerFactory.getLogger("flambeau")

  @volatile private var known: Option[Gpus] = None

  /** Those of this process. The first call looks for them. */
  def visible(api: TorchApi): Gpus = known.getOrElse(synchronized {
    if (known.isEmpty) {
      val found = Json.parse(api.gpus(), "the list of GPUs")
      known = Some(Gpus(Json.texts(found.get("uuids")), Option(found.get("obstacle").textValue)))
    }
    known.get
  })

  /** The number and the UUID of the one that the running task computes on; none for the CPU, and outside of a task. */
  def ofTask(api: TorchApi, device: String): Option[(Int, String)] =
    Option(TaskContext.get()).filter(_ => device != "cpu").flatMap { task =>
      val gpus = visible(api)
      gpus.choose(device, TaskGpus.of(task), task.partitionId()).map(number => number -> gpus.uuids(number))
    }

  /** A UUID without the prefix that only some write. */
  private def plain(name: String): String = name.toLowerCase.stripPrefix("gpu-")
}
