package flambeau

// Made from docs/training-job.schema.json by `make params`; do not edit.

/** Docs and bounds of the params that Spark ML's own traits declare, which have others there. */
private[flambeau] object SharedParams {

  /** A param's doc, and the values that it takes. */
  final case class Declaration(doc: String, check: Check)

  /** By the params' names. */
  val declarations: Map[String, Declaration] = Map(
    "checkpointInterval" -> Declaration(
      "Number of epochs between checkpoints, from the newest of which training goes on after a worker " +
        "was lost. -1 turns checkpoints at the end of epochs off.",
      Check.Integer(-1, 1000000, without = Some(0))
    ),
    "featuresCol" -> Declaration(
      "Name of the features column: a vector, an array or a number. Used when neither featuresCols nor " +
        "inputCols is set.",
      Check.Text
    ),
    "inputCols" -> Declaration(
      "Names of the columns given to the module's forward, one tensor for each argument, in this order. " +
        "When not set, featuresCol or featuresCols is the only input.",
      Check.Columns
    ),
    "labelCol" -> Declaration(
      "Name of the label column. Used when labelCols is not set.",
      Check.Text
    ),
    "outputCols" -> Declaration(
      "Names of columns for the tensors that the module returns, one for each in their order, in place " +
        "of predictionCol; an empty name leaves that tensor out. Not for classifiers, and not beside " +
        "outputNames. When not set, predictionCol has them all.",
      Check.OutputColumns
    ),
    "predictionCol" -> Declaration(
      "Name of the column that the fitted model writes its predictions to. An empty name leaves that " +
        "column out.",
      Check.TextOrEmpty
    ),
    "probabilityCol" -> Declaration(
      "Name of the column that a fitted classifier writes the probability of each class to, as a " +
        "vector. An empty name leaves that column out.",
      Check.TextOrEmpty
    ),
    "rawPredictionCol" -> Declaration(
      "Name of the column that a fitted classifier writes the module's raw outputs (logits) to, as a " +
        "vector. An empty name leaves that column out.",
      Check.TextOrEmpty
    ),
    "seed" -> Declaration(
      "Seed of the order of the rows, of the choice made by validationFraction and of the random " +
        "generators of the workers.",
      Check.Integer(Long.MinValue)
    ),
    "threshold" -> Declaration(
      "What the probability of class 1 of two, or of a label, has to exceed to be predicted. When not " +
        "set, 0.5, or what thresholds says.",
      Check.Real(0.0, 1.0)
    ),
    "thresholds" -> Declaration(
      "One threshold for each class: the class with the largest ratio of probability and threshold is " +
        "predicted. Of labels, what the probability of each has to exceed. When not set, the largest " +
        "probability counts, or what threshold says.",
      Check.Thresholds
    ),
    "validationIndicatorCol" -> Declaration(
      "Name of a boolean column: rows where it is true are used for validation and not for training. " +
        "Takes the place of validationFraction. When not set, validationFraction decides.",
      Check.Text
    ),
    "weightCol" -> Declaration(
      "Name of the column with the weight of each row, a number that is not negative. When not set, " +
        "every row weighs 1.",
      Check.Text
    )
  )
}
