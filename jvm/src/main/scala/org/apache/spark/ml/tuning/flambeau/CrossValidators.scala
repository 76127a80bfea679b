package org.apache.spark.ml.tuning.flambeau

import org.apache.spark.ml.Model
import org.apache.spark.ml.tuning.{CrossValidator, CrossValidatorModel, ValidatorParams}
import org.apache.spark.sql.SparkSession

/** What Spark keeps of its CrossValidator to its own packages. */
object CrossValidators {

  /** The result of a cross-validation; `subModels` are by fold, then by param map. */
  def model(
      uid: String,
      bestModel: Model[_],
      avgMetrics: Array[Double],
      subModels: Option[Array[Array[Model[_]]]]
  ): CrossValidatorModel = new CrossValidatorModel(uid, bestModel, avgMetrics).setSubModels(subModels)

  /** Reads a validator of a subclass of that name, which `make` makes of its uid. */
  def load[V <: CrossValidator](
      spark: SparkSession,
      path: String,
      className: String
  )(make: String => V): V = {
    val (metadata, estimator, evaluator, maps) =
      ValidatorParams.loadImpl(path, ReadingContext.of(spark), className)
    val validator = make(metadata.uid)
    validator.setEstimator(estimator).setEvaluator(evaluator).setEstimatorParamMaps(maps)
    metadata.getAndSetParams(validator, skipParams = Some(List("estimatorParamMaps")))
    validator
  }
}
