"""Params that name columns: what the module reads and what the fitted model writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pyspark.ml.param import Param, Params
from pyspark.ml.param.shared import (
    HasFeaturesCol,
    HasInputCols,
    HasLabelCol,
    HasPredictionCol,
    HasProbabilityCol,
    HasRawPredictionCol,
    HasThreshold,
    HasThresholds,
    HasValidationIndicatorCol,
    HasWeightCol,
)

from flambeau.params.converters import (
    Integer,
    Number,
    input_types,
    output_kinds,
    shapes,
    text,
    text_list,
    text_or_empty,
    text_or_list,
    threshold_list,
)
from flambeau.params.objects import CheckedParams

if TYPE_CHECKING:
    pass


class HasInputColumns(CheckedParams, HasFeaturesCol, HasInputCols):
    """What the module reads: featuresCol, or inputCols with a tensor for each argument of forward."""

    featuresCol: Param[str | list[str]] = Param(  # type: ignore[assignment]
        Params._dummy(),
        "featuresCol",
        "Name of the features column: a vector, an array or a number; or a list of numeric columns, "
        "which are packed into one tensor. Used when inputCols is not set.",
        text_or_list,
    )

    inputCols: Param[list[str]] = Param(
        Params._dummy(),
        "inputCols",
        "Names of the columns given to the module's forward, one tensor for each argument, in this "
        "order. When not set, featuresCol is the only input.",
        text_list,
    )

    inputShapes: Param[list[list[int]]] = Param(
        Params._dummy(),
        "inputShapes",
        "Shape of one row of each input, in the order of inputCols, for columns that hold flattened "
        "arrays, such as [3, 32, 32] for an image. An empty list leaves that input as its column has "
        "it. When not set, all are left.",
        shapes,
    )

    inputTypes: Param[list[str]] = Param(
        Params._dummy(),
        "inputTypes",
        "Type of the tensor of each input, in the order of inputCols: auto, float32, float64, int64, "
        "bool or uint8. auto follows the column: float, double and decimal give float32; byte, short, "
        "int and long give int64; boolean gives bool; binary gives uint8. When not set, all are auto.",
        input_types,
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._setDefault(featuresCol="features")

    def setFeaturesCol(self, value: str | list[str]) -> Self:
        """Sets `featuresCol`."""
        return self._set(featuresCol=value)

    def getFeaturesCol(self) -> str | list[str]:  # type: ignore[override]
        """The value of `featuresCol`, or its default."""
        return self.getOrDefault(self.featuresCol)

    def setInputCols(self, value: list[str]) -> Self:
        """Sets `inputCols`."""
        return self._set(inputCols=value)

    def setInputShapes(self, value: list[list[int]]) -> Self:
        """Sets `inputShapes`."""
        return self._set(inputShapes=value)

    def getInputShapes(self) -> list[list[int]] | None:
        """The value of `inputShapes`, None when it is not set."""
        return self._value("inputShapes")

    def setInputTypes(self, value: list[str]) -> Self:
        """Sets `inputTypes`."""
        return self._set(inputTypes=value)

    def getInputTypes(self) -> list[str] | None:
        """The value of `inputTypes`, None when it is not set."""
        return self._value("inputTypes")


class HasOutputColumns(CheckedParams, HasPredictionCol, HasThreshold, HasThresholds):
    """What a fitted model writes, and how many rows it scores at once."""

    predictionCol: Param[str] = Param(
        Params._dummy(),
        "predictionCol",
        "Name of the column that the fitted model writes its predictions to. An empty name leaves that "
        "column out.",
        text_or_empty,
    )

    outputNames: Param[list[str]] = Param(
        Params._dummy(),
        "outputNames",
        "Names of the fields that predictionCol has where the module returns several tensors, in their "
        "order. When not set, the keys of a dict, the fields of a named tuple, or _1, _2, ...",
        text_list,
    )

    outputKinds: Param[list[str]] = Param(
        Params._dummy(),
        "outputKinds",
        "What each tensor that the module returns is, in their order: number, which is written as it is; "
        "logits, probabilities or log_probabilities of classes; logit or probability of class 1 of two; "
        "labels or label_probabilities, the logits or probabilities of labels of which a row may have "
        "several. When not set, a classifier's follows from loss and module, and all others are number.",
        output_kinds,
    )

    threshold: Param[float] = Param(
        Params._dummy(),
        "threshold",
        "What the probability of class 1 of two, or of a label, has to exceed to be predicted. When not set, "
        "0.5, or what thresholds says.",
        Number(0.0, 1.0),
    )

    thresholds: Param[list[float]] = Param(
        Params._dummy(),
        "thresholds",
        "One threshold for each class: the class with the largest ratio of probability and threshold is "
        "predicted. Of labels, what the probability of each has to exceed. When not set, the largest "
        "probability counts, or what threshold says.",
        threshold_list,
    )

    inferenceBatchSize: Param[int] = Param(
        Params._dummy(),
        "inferenceBatchSize",
        "Number of rows given to the module at once when the fitted model transforms a DataFrame.",
        Integer(1, 16_777_216),
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # Spark's mixin has 0.5, beside which thresholds could not be set.
        self._defaultParamMap.pop(self.threshold, None)
        self._setDefault(predictionCol="prediction", inferenceBatchSize=4096)

    def setPredictionCol(self, value: str) -> Self:
        """Sets `predictionCol`."""
        return self._set(predictionCol=value)

    def setOutputNames(self, value: list[str]) -> Self:
        """Sets `outputNames`."""
        return self._set(outputNames=value)

    def getOutputNames(self) -> list[str] | None:
        """The value of `outputNames`, None when it is not set."""
        return self._value("outputNames")

    def setOutputKinds(self, value: list[str]) -> Self:
        """Sets `outputKinds`."""
        return self._set(outputKinds=value)

    def getOutputKinds(self) -> list[str] | None:
        """The value of `outputKinds`, None when it is not set."""
        return self._value("outputKinds")

    def setThreshold(self, value: float) -> Self:
        """Sets `threshold`."""
        return self._set(threshold=value)

    def setThresholds(self, value: list[float]) -> Self:
        """Sets `thresholds`."""
        return self._set(thresholds=value)

    def setInferenceBatchSize(self, value: int) -> Self:
        """Sets `inferenceBatchSize`."""
        return self._set(inferenceBatchSize=value)

    def getInferenceBatchSize(self) -> int:
        """The value of `inferenceBatchSize`, or its default."""
        return self.getOrDefault(self.inferenceBatchSize)


class HasClassColumns(CheckedParams, HasRawPredictionCol, HasProbabilityCol):
    """The further columns that a fitted classifier writes."""

    rawPredictionCol: Param[str] = Param(
        Params._dummy(),
        "rawPredictionCol",
        "Name of the column that a fitted classifier writes the module's raw outputs (logits) to, as "
        "a vector. An empty name leaves that column out.",
        text_or_empty,
    )

    probabilityCol: Param[str] = Param(
        Params._dummy(),
        "probabilityCol",
        "Name of the column that a fitted classifier writes the probability of each class to, as a vector. "
        "An empty name leaves that column out.",
        text_or_empty,
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._setDefault(rawPredictionCol="rawPrediction", probabilityCol="probability")

    def setRawPredictionCol(self, value: str) -> Self:
        """Sets `rawPredictionCol`."""
        return self._set(rawPredictionCol=value)

    def setProbabilityCol(self, value: str) -> Self:
        """Sets `probabilityCol`."""
        return self._set(probabilityCol=value)


class HasLabelColumns(CheckedParams, HasLabelCol, HasWeightCol):
    """What the loss compares with: labels, and the weight of each row."""

    labelCol: Param[str] = Param(
        Params._dummy(),
        "labelCol",
        "Name of the label column. Used when labelCols is not set.",
        text,
    )

    labelCols: Param[list[str]] = Param(
        Params._dummy(),
        "labelCols",
        "Names of several label columns, given to the loss as one tuple of tensors in this order. "
        "When not set, labelCol is the only label.",
        text_list,
    )

    weightCol: Param[str] = Param(
        Params._dummy(),
        "weightCol",
        "Name of the column with the weight of each row, a number that is not negative. When not set, "
        "every row weighs 1.",
        text,
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._setDefault(labelCol="label")

    def setLabelCol(self, value: str) -> Self:
        """Sets `labelCol`."""
        return self._set(labelCol=value)

    def setLabelCols(self, value: list[str]) -> Self:
        """Sets `labelCols`."""
        return self._set(labelCols=value)

    def getLabelCols(self) -> list[str] | None:
        """The value of `labelCols`, None when it is not set."""
        return self._value("labelCols")

    def setWeightCol(self, value: str) -> Self:
        """Sets `weightCol`."""
        return self._set(weightCol=value)


class HasValidation(CheckedParams, HasValidationIndicatorCol):
    """Which rows are kept out of training for validation."""

    validationIndicatorCol: Param[str] = Param(
        Params._dummy(),
        "validationIndicatorCol",
        "Name of a boolean column: rows where it is true are used for validation and not for "
        "training. Takes the place of validationFraction. When not set, validationFraction decides.",
        text,
    )

    validationFraction: Param[float] = Param(
        Params._dummy(),
        "validationFraction",
        "Fraction of the rows that are kept out of training, by a seeded random choice, and used for "
        "validation after each epoch. 0 means no validation.",
        Number(0.0, 1.0, open_above=True),
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._setDefault(validationFraction=0.0)

    def setValidationIndicatorCol(self, value: str) -> Self:
        """Sets `validationIndicatorCol`."""
        return self._set(validationIndicatorCol=value)

    def setValidationFraction(self, value: float) -> Self:
        """Sets `validationFraction`."""
        return self._set(validationFraction=value)

    def getValidationFraction(self) -> float:
        """The value of `validationFraction`, or its default."""
        return self.getOrDefault(self.validationFraction)
