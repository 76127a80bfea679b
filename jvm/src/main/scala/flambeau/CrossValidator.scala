package flambeau

import java.util.concurrent.{ExecutionException, ExecutorCompletionService, Executors, TimeUnit}

import flambeau.internal.fit.Prepare
import flambeau.internal.rows.Folds
import flambeau.internal.session.Session
import org.apache.spark.ml.Model
import org.apache.spark.ml.param.ParamMap
import org.apache.spark.ml.tuning
import org.apache.spark.ml.tuning.CrossValidatorModel
import org.apache.spark.ml.tuning.flambeau.CrossValidators
import org.apache.spark.ml.util.{Identifiable, MLReadable, MLReader}
import org.apache.spark.sql.functions.col
import org.apache.spark.sql.{DataFrame, Dataset}
import org.slf4j.LoggerFactory

/** Spark ML's CrossValidator, with its params, folds and results, for an estimator of Flambeau's: the rows are written once,
  * and the fits of all folds and param maps, and that of the best map at the end, read the files of the folds that they train
  * on.
  *
  * With `foldCol` the folds are those of that column, else random ones by `seed`, as Spark draws them. The DataFrame is
  * computed once and cached: models are scored on its own rows, those that they were not trained on. `validationFraction`,
  * `validationIndicatorCol` and `handleInvalid` must be the same for all maps; the rows that the first two choose are
  * validation rows wherever their fold is trained on.
  *
  * {{{
  * new CrossValidator()
  *   .setEstimator(estimator)
  *   .setEstimatorParamMaps(maps)
  *   .setEvaluator(evaluator)
  *   .setNumFolds(5)
  *   .fit(df)
  * }}}
  */
class CrossValidator(uid: String) extends tuning.CrossValidator(uid) {

  def this() = this(Identifiable.randomUID("cv"))

  // Spark's default is made of the class's name.
  setDefault(seed -> classOf[tuning.CrossValidator].getName.hashCode.toLong)

  /** The best map's model, trained on all rows, with each map's mean metric over the folds.
    *
    * An interrupt of the thread, and the first fit that fails, end all that run. Throws ParamException for an estimator that is
    * none of Flambeau's, and as `prepare` does; DataException also for a `foldCol` that is not the number of a fold in every
    * row, and for a fold without rows or with all of the validation rows; and what a fit throws.
    */
  override def fit(dataset: Dataset[_]): CrossValidatorModel = {
    val (spark, estimators) = (dataset.sparkSession, this.estimators)
    Session.interruptible(spark.sparkContext) {
      // Folds that are drawn again may come out otherwise: a row's place depends on the plan.
      val numbered = this.numbered(dataset.toDF()).persist()
      try Prepare.meanwhile(estimators, numbered, col(number)) { rows =>
          val trains = (0 until getNumFolds).map(fold => new PreparedData(rows.without(fold)))
          val scores = this.scores(estimators, trains, numbered)
          val means = scores.map(_.map(_.metric)).transpose.map(_.sum / getNumFolds)
          val ranked = means.zipWithIndex
          val (_, best) = if (getEvaluator.isLargerBetter) ranked.maxBy(_._1) else ranked.minBy(_._1)
          val model = estimators(best).fit(new PreparedData(rows))
          val models = scores.map(_.map(_.model).toArray[Model[_]]).toArray
          val kept = if (getCollectSubModels) Some(models) else None
          copyValues(CrossValidators.model(uid, model, means.toArray, kept).setParent(this))
        }
      finally numbered.unpersist()
    }
  }

  override def copy(extra: ParamMap): CrossValidator = super.copy(extra).asInstanceOf[CrossValidator]

  /** The estimator with each of the maps. */
  private def estimators: Seq[TorchEstimator] = getEstimator match {
    case estimator: TorchEstimator if getEstimatorParamMaps.nonEmpty =>
      val copies = estimator.copies(getEstimatorParamMaps.toSeq)
      if (copies.exists(one => one.valueOf(one.runId).isDefined))
        throw new ParamException(
          "runId is set, which names one run, and each fold is a run of its own: leave it unset"
        )
      copies
    case _: TorchEstimator =>
      throw new ParamException("estimatorParamMaps is empty: give one map or more; ParamMap.empty is one")
    case other =>
      throw new ParamException(
        s"estimator is a ${other.getClass.getSimpleName}, and this CrossValidator takes Flambeau's own: " +
          "org.apache.spark.ml.tuning.CrossValidator takes all, and writes the rows of each fold"
      )
  }

  /** The column with the number of a row's fold. */
  private def number: String = s"${uid}_fold"

  /** The rows with the numbers of their folds. */
  private def numbered(df: DataFrame): DataFrame =
    if (getFoldCol.isEmpty) Folds.drawn(df, number, getNumFolds, getSeed)
    else df.withColumn(number, Folds.of(df.schema, getFoldCol, getNumFolds))

  /** For each fold, what each map's model comes to that was trained without it. */
  private def scores(
      estimators: Seq[TorchEstimator],
      trains: Seq[PreparedData],
      numbered: DataFrame
  ): Seq[Seq[CrossValidator.Score]] = {
    val sc = numbered.sparkSession.sparkContext
    val pool = Executors.newFixedThreadPool(math.min(getParallelism, estimators.length))
    try
      trains.zipWithIndex.map { case (train, fold) =>
        val validation = numbered.where(col(number) === fold).drop(number)
        val done = new ExecutorCompletionService[CrossValidator.Score](pool)
        for ((estimator, index) <- estimators.zipWithIndex) done.submit { () =>
          Session.interruptible(sc) {
            val model = estimator.fit(train)
            CrossValidator.Score(index, getEvaluator.evaluate(model.transform(validation)), model)
          }
        }
        estimators.map(_ => done.take().get()).sortBy(_.index)
      }
    catch { case error: ExecutionException => throw error.getCause }
    finally {
      // The files that the others read go when this is left.
      pool.shutdownNow()
      if (!pool.awaitTermination(CrossValidator.LastFitSeconds, TimeUnit.SECONDS))
        CrossValidator.log.warn(
          s"a fit has not ended ${CrossValidator.LastFitSeconds} s after the search: its files are removed"
        )
    }
  }
}

/** Reads what `write` saved. */
object CrossValidator extends MLReadable[CrossValidator] {

  private val log = LoggerFactory.getLogger("flambeau")

  /** How long fits that are ended are waited for. */
  private val LastFitSeconds = 60L

  /** What the model of a map comes to on the rows of a fold. */
  private final case class Score(index: Int, metric: Double, model: TorchModel)

  override def read: MLReader[CrossValidator] = new MLReader[CrossValidator] {
    override def load(path: String): CrossValidator =
      CrossValidators.load(sparkSession, path, classOf[CrossValidator].getName)(new CrossValidator(_))
  }
}
