package flambeau.internal.fit

import org.apache.spark.ml.param.ParamMap

/** Estimators for trials: short trainings that keep nothing and tell nobody. */
private[fit] object Trials {

  /** A copy of the estimator with what a trial sets, and then some more. It steps alike from its first step to its last. */
  def of(estimator: Trainable)(set: Trainable => Unit): Trainable = changed(estimator) { one =>
    one.setCheckpointInterval(-1).setKeepCheckpoints(0).setRestoreBestWeights(false).setVerbose(0)
    one.setLrSchedule("constant").setWarmupEpochs(0)
    Seq(one.checkpointSteps, one.earlyStoppingPatience, one.profile, one.runId, one.tensorBoardDir)
      .foreach(one.clear(_))
    set(one)
  }

  /** A copy of the estimator with some params changed. */
  def changed(estimator: Trainable)(set: Trainable => Unit): Trainable = {
    val copy = estimator.copy(ParamMap.empty).asInstanceOf[Trainable]
    set(copy)
    copy
  }
}
