package flambeau.jni

import org.apache.spark.TaskContext
import org.apache.spark.util.TaskCompletionListener
import org.slf4j.LoggerFactory

/** A program that is loaded in this JVM, on loan to one task.
  *
  * The tasks of a JVM share a loaded program; each has its own [[InputBatch]].
  */
private[flambeau] final class Scorer private (api: TorchApi, program: LoadedProgram, spec: ScorerSpec)
    extends AutoCloseable {
  private var open = true
  private var hasWarned = false

  /** Memory for rows, `batchSize` or as many as `batchBytes` has room for, to be filled, scored, cleared and filled again.
    */
  def newBatch(): InputBatch = new InputBatch(spec.tensors, spec.numRowsAtOnce)

  /** The outputs of a batch's rows. Where memory runs out, the program gets half the rows at once, down to one, and so it does
    * from then on; a warning of the task says so once.
    *
    * @return
    *   for each field, or each output tensor where there are no fields, an `Array[Double]` for single numbers and a
    *   classifier's fields, else an `Array[Float]`, `Array[Double]`, `Array[Long]` or `Array[Boolean]`; row after row
    */
  def score(batch: InputBatch): Array[AnyRef] = {
    require(open, "the scorer is closed")
    val scores = api.score(program.handle, batch.numRows, batch.buffers)
    warnOfHalving(batch.numRows)
    scores
  }

  /** What a batch's rows add to the sums of the spec's loss and metrics; their inputs, labels and weights are its tensors. */
  def sums(batch: InputBatch): Array[Double] = {
    require(open, "the scorer is closed")
    val sums = api.sums(program.handle, batch.numRows, batch.buffers)
    warnOfHalving(batch.numRows)
    sums
  }

  private def warnOfHalving(numRows: Int): Unit =
    if (!hasWarned && api.rowsAtOnce(program.handle) < numRows) {
      hasWarned = true
      Scorer.log.warn(
        s"memory is too small for the program and $numRows rows at once, which are halved as often as it takes: " +
          "lower inferenceBatchSize or inferenceBatchBytes"
      )
    }

  /** Gives the program back; it stays loaded for the next task, while it is among the last four used. */
  override def close(): Unit = synchronized {
    if (open) {
      open = false
      LoadedPrograms.release(api, program)
    }
  }
}

private[flambeau] object Scorer {
  private val log = LoggerFactory.getLogger("flambeau")

  /** A scorer for the running task, which gives it back at its end; outside of a task the caller closes it.
    *
    * libtorch computes on the GPU that Spark assigned to the task, else on one of the machine's, as the spec's device has it;
    * then this waits until no more than `spark.flambeau.gpuTasks` tasks use that one. On the CPU, and outside of a task, it
    * computes with `spark.task.cpus` threads.
    *
    * @param conf
    *   a Spark configuration: a key's value
    */
  def apply(spec: ScorerSpec, conf: String => Option[String]): Scorer = {
    val api = NativeLibrary.torch(conf)
    val task = Option(TaskContext.get())
    val numThreads = task.map(_.cpus()).getOrElse(1)
    val gpu = Gpus.ofTask(api, spec.device)
    for ((_, uuid) <- gpu; running <- task) GpuSlots.hold(uuid, GpuSlots.number(conf), running)
    val program = LoadedPrograms.borrow(api, NativeLibrary.store(conf), spec, numThreads, gpu.map(_._1))
    val scorer = new Scorer(api, program, spec)
    task.foreach(_.addTaskCompletionListener(new TaskCompletionListener {
      override def onTaskCompletion(context: TaskContext): Unit = scorer.close()
    }))
    scorer
  }
}
