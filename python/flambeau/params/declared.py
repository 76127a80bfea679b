"""The params of a training job, and the constructor that takes them all.

Made from docs/training-job.schema.json by `make params`; do not edit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, Unpack

from pyspark import keyword_only
from pyspark.ml.param import Param, Params
from pyspark.ml.param.shared import (
    HasCheckpointInterval,
    HasFeaturesCol,
    HasInputCols,
    HasLabelCol,
    HasOutputCols,
    HasPredictionCol,
    HasProbabilityCol,
    HasRawPredictionCol,
    HasSeed,
    HasThreshold,
    HasThresholds,
    HasValidationIndicatorCol,
    HasWeightCol,
)

from flambeau.params.arguments import OtherNames, resolve_arguments
from flambeau.params.converters import (
    Integer,
    Number,
    boolean,
    groups_of_names,
    input_types,
    one_of,
    output_columns,
    output_kinds,
    saved_model,
    shapes,
    text,
    text_list,
    text_or_empty,
    threshold_list,
)
from flambeau.params.objects import CheckedParams

if TYPE_CHECKING:
    from pyspark.ml import Model

    from flambeau.callbacks import Callback


class HasInputColumns(CheckedParams, HasFeaturesCol, HasInputCols):
    """What the module reads: one features tensor, or inputCols with a tensor for each argument of forward."""

    featuresCol: Param[str] = Param(
        Params._dummy(),
        "featuresCol",
        "Name of the features column: a vector, an array or a number. Used when neither featuresCols nor "
        "inputCols is set.",
        text,
    )

    featuresCols: Param[list[str]] = Param(
        Params._dummy(),
        "featuresCols",
        "Names of numeric columns, which are packed into one tensor in this order. Takes the place of "
        "featuresCol; used when inputCols is not set.",
        text_list,
    )

    inputCols: Param[list[str]] = Param(
        Params._dummy(),
        "inputCols",
        "Names of the columns given to the module's forward, one tensor for each argument, in this order. "
        "When not set, featuresCol or featuresCols is the only input.",
        text_list,
    )

    inputNames: Param[list[str]] = Param(
        Params._dummy(),
        "inputNames",
        "Names of the arguments of forward that the inputs are given to, in the order of inputCols: the "
        "first arguments, in any order. When not set, the inputs are given in the order of inputCols.",
        text_list,
    )

    inputShapes: Param[list[list[int]]] = Param(
        Params._dummy(),
        "inputShapes",
        "Shape of one row of each input, in the order of inputCols, for columns that hold flattened arrays, "
        "such as [3, 32, 32] for an image. An empty list leaves that input as its column has it. When not "
        "set, all are left.",
        shapes,
    )

    inputTypes: Param[list[str]] = Param(
        Params._dummy(),
        "inputTypes",
        "Type of the tensor of each input, in the order of inputCols: auto, float32, float64, int64, bool or "
        "uint8. auto follows the column: float, double and decimal give float32; byte, short, int and long "
        "give int64; boolean gives bool; binary gives uint8. In PySpark also sparse, with which vectors and "
        "arrays reach preprocess as sparse CSR tensors of float32. When not set, all are auto.",
        input_types,
    )

    handleInvalid: Param[str] = Param(
        Params._dummy(),
        "handleInvalid",
        "What becomes of rows whose features hold a null or a NaN, in training and where a DataFrame is "
        "transformed or evaluated: keep (a NaN goes on to preprocess or the module, and a null is refused), "
        "skip (they are left out), error (they are refused). Labels and weights are held to their own rules.",
        one_of("keep", "skip", "error"),
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._setDefault(featuresCol="features", handleInvalid="keep")

    def setFeaturesCol(self, value: str | list[str] | None) -> Self:
        """Sets `featuresCol`; None unsets it."""
        return self._set(featuresCol=value)

    def setFeaturesCols(self, value: list[str] | None) -> Self:
        """Sets `featuresCols`; None unsets it."""
        return self._set(featuresCols=value)

    def getFeaturesCols(self) -> list[str] | None:
        """The value of `featuresCols`, None when it is not set."""
        return self._value("featuresCols")

    def setInputCols(self, value: list[str] | dict[str, str] | None) -> Self:
        """Sets `inputCols`; None unsets it."""
        return self._set(inputCols=value)

    def setInputNames(self, value: list[str] | None) -> Self:
        """Sets `inputNames`; None unsets it."""
        return self._set(inputNames=value)

    def getInputNames(self) -> list[str] | None:
        """The value of `inputNames`, None when it is not set."""
        return self._value("inputNames")

    def setInputShapes(self, value: list[list[int]] | None) -> Self:
        """Sets `inputShapes`; None unsets it."""
        return self._set(inputShapes=value)

    def getInputShapes(self) -> list[list[int]] | None:
        """The value of `inputShapes`, None when it is not set."""
        return self._value("inputShapes")

    def setInputTypes(self, value: list[str] | None) -> Self:
        """Sets `inputTypes`; None unsets it."""
        return self._set(inputTypes=value)

    def getInputTypes(self) -> list[str] | None:
        """The value of `inputTypes`, None when it is not set."""
        return self._value("inputTypes")

    def setHandleInvalid(self, value: str | None) -> Self:
        """Sets `handleInvalid`; None unsets it."""
        return self._set(handleInvalid=value)

    def getHandleInvalid(self) -> str:
        """The value of `handleInvalid`, or its default."""
        return self.getOrDefault(self.handleInvalid)


class HasOutputColumns(CheckedParams, HasPredictionCol, HasOutputCols, HasThreshold, HasThresholds):
    """What a fitted model writes, and how many rows it scores at once."""

    predictionCol: Param[str] = Param(
        Params._dummy(),
        "predictionCol",
        "Name of the column that the fitted model writes its predictions to. An empty name leaves that "
        "column out.",
        text_or_empty,
    )

    outputCols: Param[list[str]] = Param(
        Params._dummy(),
        "outputCols",
        "Names of columns for the tensors that the module returns, one for each in their order, in place of "
        "predictionCol; an empty name leaves that tensor out. Not for classifiers, and not beside "
        "outputNames. When not set, predictionCol has them all.",
        output_columns,
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

    inferenceBatchBytes: Param[int] = Param(
        Params._dummy(),
        "inferenceBatchBytes",
        "Bytes that an input or an output may take of the rows given to the module at once, which are fewer "
        "than inferenceBatchSize where they take more. A single row may take more.",
        Integer(1, 1_073_741_824),
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # Spark's mixin has one, beside which others could not be set.
        self._defaultParamMap.pop(self.threshold, None)
        self._setDefault(predictionCol="prediction", inferenceBatchSize=4096, inferenceBatchBytes=67108864)

    def setPredictionCol(self, value: str | None) -> Self:
        """Sets `predictionCol`; None unsets it."""
        return self._set(predictionCol=value)

    def setOutputCols(self, value: list[str] | None) -> Self:
        """Sets `outputCols`; None unsets it."""
        return self._set(outputCols=value)

    def setOutputNames(self, value: list[str] | None) -> Self:
        """Sets `outputNames`; None unsets it."""
        return self._set(outputNames=value)

    def getOutputNames(self) -> list[str] | None:
        """The value of `outputNames`, None when it is not set."""
        return self._value("outputNames")

    def setOutputKinds(self, value: list[str] | None) -> Self:
        """Sets `outputKinds`; None unsets it."""
        return self._set(outputKinds=value)

    def getOutputKinds(self) -> list[str] | None:
        """The value of `outputKinds`, None when it is not set."""
        return self._value("outputKinds")

    def setThreshold(self, value: float | None) -> Self:
        """Sets `threshold`; None unsets it."""
        return self._set(threshold=value)

    def setThresholds(self, value: list[float] | None) -> Self:
        """Sets `thresholds`; None unsets it."""
        return self._set(thresholds=value)

    def setInferenceBatchSize(self, value: int | None) -> Self:
        """Sets `inferenceBatchSize`; None unsets it."""
        return self._set(inferenceBatchSize=value)

    def getInferenceBatchSize(self) -> int:
        """The value of `inferenceBatchSize`, or its default."""
        return self.getOrDefault(self.inferenceBatchSize)

    def setInferenceBatchBytes(self, value: int | None) -> Self:
        """Sets `inferenceBatchBytes`; None unsets it."""
        return self._set(inferenceBatchBytes=value)

    def getInferenceBatchBytes(self) -> int:
        """The value of `inferenceBatchBytes`, or its default."""
        return self.getOrDefault(self.inferenceBatchBytes)


class HasClassColumns(CheckedParams, HasRawPredictionCol, HasProbabilityCol):
    """The further columns that a fitted classifier writes."""

    rawPredictionCol: Param[str] = Param(
        Params._dummy(),
        "rawPredictionCol",
        "Name of the column that a fitted classifier writes the module's raw outputs (logits) to, as a "
        "vector. An empty name leaves that column out.",
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

    def setRawPredictionCol(self, value: str | None) -> Self:
        """Sets `rawPredictionCol`; None unsets it."""
        return self._set(rawPredictionCol=value)

    def setProbabilityCol(self, value: str | None) -> Self:
        """Sets `probabilityCol`; None unsets it."""
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
        "Names of several label columns, given to the loss as one tuple of tensors in this order. When not "
        "set, labelCol is the only label.",
        text_list,
    )

    weightCol: Param[str] = Param(
        Params._dummy(),
        "weightCol",
        "Name of the column with the weight of each row, a number that is not negative. When not set, every "
        "row weighs 1.",
        text,
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._setDefault(labelCol="label")

    def setLabelCol(self, value: str | None) -> Self:
        """Sets `labelCol`; None unsets it."""
        return self._set(labelCol=value)

    def setLabelCols(self, value: list[str] | None) -> Self:
        """Sets `labelCols`; None unsets it."""
        return self._set(labelCols=value)

    def getLabelCols(self) -> list[str] | None:
        """The value of `labelCols`, None when it is not set."""
        return self._value("labelCols")

    def setWeightCol(self, value: str | None) -> Self:
        """Sets `weightCol`; None unsets it."""
        return self._set(weightCol=value)


class HasInitialModel(CheckedParams):
    """Whose weights and whose optimizer's state training starts from."""

    initialModel: Param[str | Model] = Param(
        Params._dummy(),
        "initialModel",
        "Directory of a saved model whose weights training starts from; they must be those of a module like "
        "the one that is trained. When not set, training starts from the module's own weights.",
        saved_model,
    )

    initialState: Param[str] = Param(
        Params._dummy(),
        "initialState",
        "Directory of a checkpoint that an earlier fit kept (keepCheckpoints), from whose optimizer's state "
        "training starts: its momenta and numbers of steps. The optimizer must be of the same kind and have "
        "the same parameters; the weights are initialModel's, and rates and other options those of "
        "optimizer. When not set, the optimizer begins anew.",
        text,
    )

    def setInitialModel(self, value: str | Model | None) -> Self:
        """Sets `initialModel`; None unsets it."""
        return self._set(initialModel=value)

    def getInitialModel(self) -> str | Model | None:
        """The value of `initialModel`, None when it is not set."""
        return self._value("initialModel")

    def setInitialState(self, value: str | None) -> Self:
        """Sets `initialState`; None unsets it."""
        return self._set(initialState=value)

    def getInitialState(self) -> str | None:
        """The value of `initialState`, None when it is not set."""
        return self._value("initialState")


class HasValidation(CheckedParams, HasValidationIndicatorCol):
    """Which rows are kept out of training for validation."""

    validationIndicatorCol: Param[str] = Param(
        Params._dummy(),
        "validationIndicatorCol",
        "Name of a boolean column: rows where it is true are used for validation and not for training. Takes "
        "the place of validationFraction. When not set, validationFraction decides.",
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

    def setValidationIndicatorCol(self, value: str | None) -> Self:
        """Sets `validationIndicatorCol`; None unsets it."""
        return self._set(validationIndicatorCol=value)

    def setValidationFraction(self, value: float | None) -> Self:
        """Sets `validationFraction`; None unsets it."""
        return self._set(validationFraction=value)

    def getValidationFraction(self) -> float:
        """The value of `validationFraction`, or its default."""
        return self.getOrDefault(self.validationFraction)


class HasTrainingLoop(CheckedParams, HasSeed):
    """How the rows are gone through and the optimizer stepped."""

    batchSize: Param[int] = Param(
        Params._dummy(),
        "batchSize",
        "Number of rows in a batch of one worker. The global batch has batchSize x numWorkers rows.",
        Integer(1, 16_777_216),
    )

    dropLast: Param[bool] = Param(
        Params._dummy(),
        "dropLast",
        "Whether the last batch of an epoch is left out where it would be smaller than the others.",
        boolean,
    )

    epochs: Param[int] = Param(
        Params._dummy(),
        "epochs",
        "Number of passes over the training rows.",
        Integer(1, 1_000_000),
    )

    seed: Param[int] = Param(
        Params._dummy(),
        "seed",
        "Seed of the order of the rows, of the choice made by validationFraction and of the random "
        "generators of the workers.",
        Integer(-(2**63), 2**63 - 1),
    )

    shuffle: Param[bool] = Param(
        Params._dummy(),
        "shuffle",
        "Whether the rows are shuffled, anew in every epoch. When false they are read in the order of the "
        "data.",
        boolean,
    )

    shuffleWindow: Param[int] = Param(
        Params._dummy(),
        "shuffleWindow",
        "Number of rows that are shuffled together in memory by each lane. Larger mixes better and takes "
        "more memory. When not set, as many as fit in 64 MiB, but at least 4096 and at most 1048576.",
        Integer(1, 1_073_741_824),
    )

    gradientAccumulationSteps: Param[int] = Param(
        Params._dummy(),
        "gradientAccumulationSteps",
        "Number of batches whose gradients are accumulated before each step of the optimizer. The step is "
        "that of one batch that many times larger.",
        Integer(1, 1_000_000),
    )

    gradientClipNorm: Param[float] = Param(
        Params._dummy(),
        "gradientClipNorm",
        "Largest 2-norm of all gradients together; larger gradients are scaled down to it before each step "
        "of the optimizer. When not set, gradients are not clipped.",
        Number(0.0, open_below=True),
    )

    gradientClipValue: Param[float] = Param(
        Params._dummy(),
        "gradientClipValue",
        "Largest magnitude of each entry of the gradients; larger entries are cut to it before each step of "
        "the optimizer. Not together with gradientClipNorm, and not on GPUs. When not set, gradients are not "
        "clipped.",
        Number(0.0, open_below=True),
    )

    emaDecay: Param[float] = Param(
        Params._dummy(),
        "emaDecay",
        "Decay of an exponential moving average of the weights: after each step of the optimizer the average "
        "is emaDecay of itself and the rest of the weights. Validation rows are evaluated with it, and the "
        "fitted model has it. Not on GPUs. When not set, the weights are those of the optimizer.",
        Number(0.0, 1.0, open_above=True),
    )

    syncEvery: Param[int] = Param(
        Params._dummy(),
        "syncEvery",
        "Steps of the optimizer between two averages. With 1 the workers average their gradients in each "
        "step. With more each steps on its own gradients, and after so many steps, before each checkpoint "
        "and at the end of each epoch the weights and the optimizer's state are averaged (local SGD). Not on "
        "GPUs, nor with gradientCompression, gradientGroups, emaDecay or precision fp16.",
        Integer(1, 1_000_000),
    )

    bucketSize: Param[int] = Param(
        Params._dummy(),
        "bucketSize",
        "Bytes of gradients that are reduced at once: while backward goes on, a bucket is reduced as soon as "
        "its gradients are there. The first one is closed at 1 MiB where that is less. Larger ones make "
        "fewer messages, smaller ones begin earlier.",
        Integer(1, 1_073_741_824),
    )

    gradientGroups: Param[list[list[str]]] = Param(
        Params._dummy(),
        "gradientGroups",
        "Names of parameters whose gradients are reduced together, as soon as the last of them is there, a "
        'list for each group, such as [["encoder.weight", "encoder.bias"]]: a group is a bucket of its own, '
        "whatever its bytes, and one for each type where its parameters have several. The others are in "
        "buckets by bucketSize, as all are when it is not set.",
        groups_of_names,
    )

    gradientCompression: Param[str] = Param(
        Params._dummy(),
        "gradientCompression",
        "What float32 gradients travel as between the workers: none, as they are; fp16 or bf16, as 16-bit "
        "floats, summed in float32 between CPUs, where fp16 has more digits and bf16 the range of float32; "
        "powersgd, matrices as products of two thin ones; topk, the largest entries alone. With powersgd and "
        "topk, which GPUs do not have, a worker adds what it has not sent to its next gradients. It pays "
        "where the network is slow; workers of one host share memory and are slower with it. All workers get "
        "the same bits.",
        one_of("none", "fp16", "bf16", "powersgd", "topk"),
    )

    powerSgdRank: Param[int] = Param(
        Params._dummy(),
        "powerSgdRank",
        "Number of columns of the two matrices that gradientCompression powersgd makes of a gradient: more "
        "are nearer to it and take longer.",
        Integer(1, 1_024),
    )

    powerSgdStartStep: Param[int] = Param(
        Params._dummy(),
        "powerSgdStartStep",
        "Number of optimizer steps before gradientCompression powersgd begins, while gradients travel as "
        "they are: the first ones change the most.",
        Integer(0),
    )

    topKRatio: Param[float] = Param(
        Params._dummy(),
        "topKRatio",
        "Share of the entries of each parameter's gradient that gradientCompression topk sends, rounded up.",
        Number(0.0, 1.0, open_below=True),
    )

    precision: Param[str] = Param(
        Params._dummy(),
        "precision",
        "Type that forward and loss are computed in: float32, which leaves the module as it is; tf32, which "
        "is float32 but for the matrix products and convolutions of GPUs, and float32 to the bit on a CPU; "
        "bf16 or fp16, which run both under torch's autocast to bfloat16 or float16 while weights, gradients "
        "and optimizer keep their type, fp16 with dynamic loss scaling. bf16 is faster on processors with "
        "AMX or AVX-512 BF16 instructions, and slower, not wrong, on others; fp16 is meant for GPUs. The "
        "fitted model predicts in the module's own type.",
        one_of("float32", "tf32", "bf16", "fp16"),
    )

    compile: Param[bool] = Param(
        Params._dummy(),
        "compile",
        "Whether the module is compiled by torch.compile for training. Where that fails it trains as it is, "
        "and a warning says why. The fitted model holds the module as it was given. The native runtime, "
        "whose programs are compiled already, refuses it.",
        boolean,
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._setDefault(
            batchSize=32,
            dropLast=False,
            epochs=1,
            seed=0,
            shuffle=True,
            gradientAccumulationSteps=1,
            syncEvery=1,
            bucketSize=26214400,
            gradientCompression="none",
            powerSgdRank=1,
            powerSgdStartStep=1000,
            topKRatio=0.01,
            precision="float32",
            compile=False,
        )

    def setBatchSize(self, value: int | None) -> Self:
        """Sets `batchSize`; None unsets it."""
        return self._set(batchSize=value)

    def getBatchSize(self) -> int:
        """The value of `batchSize`, or its default."""
        return self.getOrDefault(self.batchSize)

    def setDropLast(self, value: bool | None) -> Self:
        """Sets `dropLast`; None unsets it."""
        return self._set(dropLast=value)

    def getDropLast(self) -> bool:
        """The value of `dropLast`, or its default."""
        return self.getOrDefault(self.dropLast)

    def setEpochs(self, value: int | None) -> Self:
        """Sets `epochs`; None unsets it."""
        return self._set(epochs=value)

    def getEpochs(self) -> int:
        """The value of `epochs`, or its default."""
        return self.getOrDefault(self.epochs)

    def setSeed(self, value: int | None) -> Self:
        """Sets `seed`; None unsets it."""
        return self._set(seed=value)

    def setShuffle(self, value: bool | None) -> Self:
        """Sets `shuffle`; None unsets it."""
        return self._set(shuffle=value)

    def getShuffle(self) -> bool:
        """The value of `shuffle`, or its default."""
        return self.getOrDefault(self.shuffle)

    def setShuffleWindow(self, value: int | None) -> Self:
        """Sets `shuffleWindow`; None unsets it."""
        return self._set(shuffleWindow=value)

    def getShuffleWindow(self) -> int | None:
        """The value of `shuffleWindow`, None when it is not set."""
        return self._value("shuffleWindow")

    def setGradientAccumulationSteps(self, value: int | None) -> Self:
        """Sets `gradientAccumulationSteps`; None unsets it."""
        return self._set(gradientAccumulationSteps=value)

    def getGradientAccumulationSteps(self) -> int:
        """The value of `gradientAccumulationSteps`, or its default."""
        return self.getOrDefault(self.gradientAccumulationSteps)

    def setGradientClipNorm(self, value: float | None) -> Self:
        """Sets `gradientClipNorm`; None unsets it."""
        return self._set(gradientClipNorm=value)

    def getGradientClipNorm(self) -> float | None:
        """The value of `gradientClipNorm`, None when it is not set."""
        return self._value("gradientClipNorm")

    def setGradientClipValue(self, value: float | None) -> Self:
        """Sets `gradientClipValue`; None unsets it."""
        return self._set(gradientClipValue=value)

    def getGradientClipValue(self) -> float | None:
        """The value of `gradientClipValue`, None when it is not set."""
        return self._value("gradientClipValue")

    def setEmaDecay(self, value: float | None) -> Self:
        """Sets `emaDecay`; None unsets it."""
        return self._set(emaDecay=value)

    def getEmaDecay(self) -> float | None:
        """The value of `emaDecay`, None when it is not set."""
        return self._value("emaDecay")

    def setSyncEvery(self, value: int | None) -> Self:
        """Sets `syncEvery`; None unsets it."""
        return self._set(syncEvery=value)

    def getSyncEvery(self) -> int:
        """The value of `syncEvery`, or its default."""
        return self.getOrDefault(self.syncEvery)

    def setBucketSize(self, value: int | None) -> Self:
        """Sets `bucketSize`; None unsets it."""
        return self._set(bucketSize=value)

    def getBucketSize(self) -> int:
        """The value of `bucketSize`, or its default."""
        return self.getOrDefault(self.bucketSize)

    def setGradientGroups(self, value: list[list[str]] | None) -> Self:
        """Sets `gradientGroups`; None unsets it."""
        return self._set(gradientGroups=value)

    def getGradientGroups(self) -> list[list[str]] | None:
        """The value of `gradientGroups`, None when it is not set."""
        return self._value("gradientGroups")

    def setGradientCompression(self, value: str | None) -> Self:
        """Sets `gradientCompression`; None unsets it."""
        return self._set(gradientCompression=value)

    def getGradientCompression(self) -> str:
        """The value of `gradientCompression`, or its default."""
        return self.getOrDefault(self.gradientCompression)

    def setPowerSgdRank(self, value: int | None) -> Self:
        """Sets `powerSgdRank`; None unsets it."""
        return self._set(powerSgdRank=value)

    def getPowerSgdRank(self) -> int:
        """The value of `powerSgdRank`, or its default."""
        return self.getOrDefault(self.powerSgdRank)

    def setPowerSgdStartStep(self, value: int | None) -> Self:
        """Sets `powerSgdStartStep`; None unsets it."""
        return self._set(powerSgdStartStep=value)

    def getPowerSgdStartStep(self) -> int:
        """The value of `powerSgdStartStep`, or its default."""
        return self.getOrDefault(self.powerSgdStartStep)

    def setTopKRatio(self, value: float | None) -> Self:
        """Sets `topKRatio`; None unsets it."""
        return self._set(topKRatio=value)

    def getTopKRatio(self) -> float:
        """The value of `topKRatio`, or its default."""
        return self.getOrDefault(self.topKRatio)

    def setPrecision(self, value: str | None) -> Self:
        """Sets `precision`; None unsets it."""
        return self._set(precision=value)

    def getPrecision(self) -> str:
        """The value of `precision`, or its default."""
        return self.getOrDefault(self.precision)

    def setCompile(self, value: bool | None) -> Self:
        """Sets `compile`; None unsets it."""
        return self._set(compile=value)

    def getCompile(self) -> bool:
        """The value of `compile`, or its default."""
        return self.getOrDefault(self.compile)


class HasLearningRate(CheckedParams):
    """The learning rate over the training."""

    learningRate: Param[float] = Param(
        Params._dummy(),
        "learningRate",
        "Learning rate. When not set, the rate that the optimizer was made with is kept.",
        Number(0.0),
    )

    scaleLearningRate: Param[bool] = Param(
        Params._dummy(),
        "scaleLearningRate",
        "Whether the learning rate is multiplied by numWorkers, since the global batch is that many times "
        "larger than one worker's. With warmupEpochs it grows from the rate of one worker.",
        boolean,
    )

    warmupEpochs: Param[float] = Param(
        Params._dummy(),
        "warmupEpochs",
        "Number of epochs, which need not be whole, over which the learning rate grows step by step to its "
        "full value, at most epochs. 0 begins with that.",
        Number(0.0),
    )

    lrSchedule: Param[str] = Param(
        Params._dummy(),
        "lrSchedule",
        "How the learning rate falls after the warm-up: constant, not at all; linear or cosine, step by step "
        "to lrEndFactor of it at the end of the last epoch; step, to lrDecayRate of what it was after every "
        "lrDecayEpochs epochs; exponential, by as much, but evenly in each step; plateau, to lrDecayRate of "
        "what it was whenever monitor has not got better for more than plateauPatience epochs. onecycle has "
        "a warm-up of its own: the rate rises to its full value and falls to almost nothing, by the three "
        "params that begin with oneCycle; the momentum stays as it is.",
        one_of("constant", "linear", "cosine", "step", "exponential", "onecycle", "plateau"),
    )

    lrEndFactor: Param[float] = Param(
        Params._dummy(),
        "lrEndFactor",
        "What lrSchedule linear and cosine leave of the learning rate at the end of the last epoch, and the "
        "least that plateau leaves of it.",
        Number(0.0, 1.0),
    )

    lrDecayRate: Param[float] = Param(
        Params._dummy(),
        "lrDecayRate",
        "What lrSchedule step and exponential multiply the learning rate by in lrDecayEpochs epochs, and "
        "plateau at a time.",
        Number(0.0, 1.0, open_below=True),
    )

    lrDecayEpochs: Param[int] = Param(
        Params._dummy(),
        "lrDecayEpochs",
        "Number of epochs in which lrSchedule step and exponential multiply the learning rate by "
        "lrDecayRate.",
        Integer(1, 1_000_000),
    )

    oneCyclePctStart: Param[float] = Param(
        Params._dummy(),
        "oneCyclePctStart",
        "Share of all optimizer steps in which the learning rate rises, with lrSchedule onecycle.",
        Number(0.0, 1.0),
    )

    oneCycleDivFactor: Param[float] = Param(
        Params._dummy(),
        "oneCycleDivFactor",
        "What the learning rate is divided by in the first step, with lrSchedule onecycle.",
        Number(1.0),
    )

    oneCycleFinalDivFactor: Param[float] = Param(
        Params._dummy(),
        "oneCycleFinalDivFactor",
        "What the learning rate of the first step is divided by in the last one, with lrSchedule onecycle.",
        Number(1.0),
    )

    plateauPatience: Param[int] = Param(
        Params._dummy(),
        "plateauPatience",
        "Number of epochs in a row without a better value of monitor that lrSchedule plateau lets pass; one "
        "more, and the learning rate falls.",
        Integer(0, 1_000_000),
    )

    plateauThreshold: Param[float] = Param(
        Params._dummy(),
        "plateauThreshold",
        "By what share of the best value so far monitor must be better for lrSchedule plateau to count it as "
        "such.",
        Number(0.0),
    )

    plateauCooldown: Param[int] = Param(
        Params._dummy(),
        "plateauCooldown",
        "Number of epochs after the learning rate fell in which lrSchedule plateau does not count.",
        Integer(0, 1_000_000),
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._setDefault(
            scaleLearningRate=False,
            warmupEpochs=0.0,
            lrSchedule="constant",
            lrEndFactor=0.0,
            lrDecayRate=0.1,
            lrDecayEpochs=10,
            oneCyclePctStart=0.3,
            oneCycleDivFactor=25.0,
            oneCycleFinalDivFactor=10000.0,
            plateauPatience=10,
            plateauThreshold=0.0001,
            plateauCooldown=0,
        )

    def setLearningRate(self, value: float | None) -> Self:
        """Sets `learningRate`; None unsets it."""
        return self._set(learningRate=value)

    def getLearningRate(self) -> float | None:
        """The value of `learningRate`, None when it is not set."""
        return self._value("learningRate")

    def setScaleLearningRate(self, value: bool | None) -> Self:
        """Sets `scaleLearningRate`; None unsets it."""
        return self._set(scaleLearningRate=value)

    def getScaleLearningRate(self) -> bool:
        """The value of `scaleLearningRate`, or its default."""
        return self.getOrDefault(self.scaleLearningRate)

    def setWarmupEpochs(self, value: float | None) -> Self:
        """Sets `warmupEpochs`; None unsets it."""
        return self._set(warmupEpochs=value)

    def getWarmupEpochs(self) -> float:
        """The value of `warmupEpochs`, or its default."""
        return self.getOrDefault(self.warmupEpochs)

    def setLrSchedule(self, value: str | None) -> Self:
        """Sets `lrSchedule`; None unsets it."""
        return self._set(lrSchedule=value)

    def getLrSchedule(self) -> str:
        """The value of `lrSchedule`, or its default."""
        return self.getOrDefault(self.lrSchedule)

    def setLrEndFactor(self, value: float | None) -> Self:
        """Sets `lrEndFactor`; None unsets it."""
        return self._set(lrEndFactor=value)

    def getLrEndFactor(self) -> float:
        """The value of `lrEndFactor`, or its default."""
        return self.getOrDefault(self.lrEndFactor)

    def setLrDecayRate(self, value: float | None) -> Self:
        """Sets `lrDecayRate`; None unsets it."""
        return self._set(lrDecayRate=value)

    def getLrDecayRate(self) -> float:
        """The value of `lrDecayRate`, or its default."""
        return self.getOrDefault(self.lrDecayRate)

    def setLrDecayEpochs(self, value: int | None) -> Self:
        """Sets `lrDecayEpochs`; None unsets it."""
        return self._set(lrDecayEpochs=value)

    def getLrDecayEpochs(self) -> int:
        """The value of `lrDecayEpochs`, or its default."""
        return self.getOrDefault(self.lrDecayEpochs)

    def setOneCyclePctStart(self, value: float | None) -> Self:
        """Sets `oneCyclePctStart`; None unsets it."""
        return self._set(oneCyclePctStart=value)

    def getOneCyclePctStart(self) -> float:
        """The value of `oneCyclePctStart`, or its default."""
        return self.getOrDefault(self.oneCyclePctStart)

    def setOneCycleDivFactor(self, value: float | None) -> Self:
        """Sets `oneCycleDivFactor`; None unsets it."""
        return self._set(oneCycleDivFactor=value)

    def getOneCycleDivFactor(self) -> float:
        """The value of `oneCycleDivFactor`, or its default."""
        return self.getOrDefault(self.oneCycleDivFactor)

    def setOneCycleFinalDivFactor(self, value: float | None) -> Self:
        """Sets `oneCycleFinalDivFactor`; None unsets it."""
        return self._set(oneCycleFinalDivFactor=value)

    def getOneCycleFinalDivFactor(self) -> float:
        """The value of `oneCycleFinalDivFactor`, or its default."""
        return self.getOrDefault(self.oneCycleFinalDivFactor)

    def setPlateauPatience(self, value: int | None) -> Self:
        """Sets `plateauPatience`; None unsets it."""
        return self._set(plateauPatience=value)

    def getPlateauPatience(self) -> int:
        """The value of `plateauPatience`, or its default."""
        return self.getOrDefault(self.plateauPatience)

    def setPlateauThreshold(self, value: float | None) -> Self:
        """Sets `plateauThreshold`; None unsets it."""
        return self._set(plateauThreshold=value)

    def getPlateauThreshold(self) -> float:
        """The value of `plateauThreshold`, or its default."""
        return self.getOrDefault(self.plateauThreshold)

    def setPlateauCooldown(self, value: int | None) -> Self:
        """Sets `plateauCooldown`; None unsets it."""
        return self._set(plateauCooldown=value)

    def getPlateauCooldown(self) -> int:
        """The value of `plateauCooldown`, or its default."""
        return self.getOrDefault(self.plateauCooldown)


class HasEarlyStopping(CheckedParams):
    """Which epoch was the best, whether training ends after it, and whose weights are kept."""

    monitor: Param[str] = Param(
        Params._dummy(),
        "monitor",
        "Name of the loss or metric in the history that says which epoch was the best, such as val_loss or "
        "val_accuracy. When not set, val_loss where there are validation rows, else loss.",
        text,
    )

    monitorMode: Param[str] = Param(
        Params._dummy(),
        "monitorMode",
        "Whether the smaller (min) or the larger (max) value of monitor is better. auto goes by its name, "
        "for the loss and the named metrics.",
        one_of("auto", "min", "max"),
    )

    minDelta: Param[float] = Param(
        Params._dummy(),
        "minDelta",
        "By how much more than this an epoch must be better than the best one so far to become the best.",
        Number(0.0),
    )

    earlyStoppingPatience: Param[int] = Param(
        Params._dummy(),
        "earlyStoppingPatience",
        "Number of epochs in a row without a new best one after which training stops. When not set, it takes "
        "all epochs.",
        Integer(1, 1_000_000),
    )

    restoreBestWeights: Param[bool] = Param(
        Params._dummy(),
        "restoreBestWeights",
        "Whether the fitted model has the weights of the best epoch, by monitor, rather than of the last.",
        boolean,
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._setDefault(monitorMode="auto", minDelta=0.0, restoreBestWeights=False)

    def setMonitor(self, value: str | None) -> Self:
        """Sets `monitor`; None unsets it."""
        return self._set(monitor=value)

    def getMonitor(self) -> str | None:
        """The value of `monitor`, None when it is not set."""
        return self._value("monitor")

    def setMonitorMode(self, value: str | None) -> Self:
        """Sets `monitorMode`; None unsets it."""
        return self._set(monitorMode=value)

    def getMonitorMode(self) -> str:
        """The value of `monitorMode`, or its default."""
        return self.getOrDefault(self.monitorMode)

    def setMinDelta(self, value: float | None) -> Self:
        """Sets `minDelta`; None unsets it."""
        return self._set(minDelta=value)

    def getMinDelta(self) -> float:
        """The value of `minDelta`, or its default."""
        return self.getOrDefault(self.minDelta)

    def setEarlyStoppingPatience(self, value: int | None) -> Self:
        """Sets `earlyStoppingPatience`; None unsets it."""
        return self._set(earlyStoppingPatience=value)

    def getEarlyStoppingPatience(self) -> int | None:
        """The value of `earlyStoppingPatience`, None when it is not set."""
        return self._value("earlyStoppingPatience")

    def setRestoreBestWeights(self, value: bool | None) -> Self:
        """Sets `restoreBestWeights`; None unsets it."""
        return self._set(restoreBestWeights=value)

    def getRestoreBestWeights(self) -> bool:
        """The value of `restoreBestWeights`, or its default."""
        return self.getOrDefault(self.restoreBestWeights)


class HasDevice(CheckedParams):
    """Where the module runs."""

    device: Param[str] = Param(
        Params._dummy(),
        "device",
        "Where modules are trained and score: cpu; cuda, on one GPU for each worker, which is the one that "
        "Spark has assigned to its task, else one of the machine's that no other worker has; auto, on GPUs "
        "where every worker has one that torch can use, and on the CPU where none has. Fewer GPUs than "
        "workers and machines of which only some have GPUs are refused unless it is cpu.",
        one_of("auto", "cpu", "cuda"),
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._setDefault(device="auto")

    def setDevice(self, value: str | None) -> Self:
        """Sets `device`; None unsets it."""
        return self._set(device=value)

    def getDevice(self) -> str:
        """The value of `device`, or its default."""
        return self.getOrDefault(self.device)


class HasWorkers(CheckedParams, HasCheckpointInterval):
    """How many workers train, what they may use, and what happens when one is lost."""

    numWorkers: Param[int] = Param(
        Params._dummy(),
        "numWorkers",
        "Number of workers that train together. Each is one task of a barrier stage and needs one free task "
        "slot.",
        Integer(1, 4_096),
    )

    dataLanes: Param[int] = Param(
        Params._dummy(),
        "dataLanes",
        "Number of lanes that the rows are dealt to. The order of the rows depends on the lanes and not on "
        "the workers, so runs with the same dataLanes and the same global batch (batchSize x numWorkers) see "
        "the same batches on any number of workers up to dataLanes. Must divide the global batch. When not "
        "set, numWorkers.",
        Integer(1, 65_536),
    )

    numThreads: Param[int] = Param(
        Params._dummy(),
        "numThreads",
        "Number of threads that torch computes with in each worker. When not set, the cores of the machine "
        "are shared evenly among its workers.",
        Integer(1, 4_096),
    )

    numGpusPerWorker: Param[int] = Param(
        Params._dummy(),
        "numGpusPerWorker",
        "Number of GPUs that Spark is asked for with the task of each worker: 1 schedules the training by a "
        "resource profile of its own (stage-level scheduling), 0 asks for none. Workers then have the GPUs "
        "that spark.task.resource.gpu.amount gives them, else those that they find.",
        Integer(0, 1),
    )

    memoryBudget: Param[int] = Param(
        Params._dummy(),
        "memoryBudget",
        "Bytes that each worker may use for decoded rows. A worker whose share of the data fits decodes it "
        "once and keeps it; otherwise it decodes the rows again in every epoch.",
        Integer(1_048_576),
    )

    checkpointInterval: Param[int] = Param(
        Params._dummy(),
        "checkpointInterval",
        "Number of epochs between checkpoints, from the newest of which training goes on after a worker was "
        "lost. -1 turns checkpoints at the end of epochs off.",
        Integer(-1, 1_000_000, without=0),
    )

    checkpointSteps: Param[int] = Param(
        Params._dummy(),
        "checkpointSteps",
        "Number of optimizer steps between further checkpoints, for epochs that take long. When not set, "
        "there are checkpoints at the end of epochs only.",
        Integer(1),
    )

    keepCheckpoints: Param[int] = Param(
        Params._dummy(),
        "keepCheckpoints",
        "Number of checkpoints that a fit which succeeds leaves in the work directory: the newest ones, with "
        "the weights as a file of their own, the last of them from the end of the training. 0 leaves none.",
        Integer(0, 1_000_000),
    )

    runId: Param[str] = Param(
        Params._dummy(),
        "runId",
        "Name of the run in the work directory, of letters, digits, - and _. A fit that fails or is "
        "interrupted keeps its checkpoints, and the next one with the same runId goes on from the newest, to "
        "the same bits. It must be the same job on the same rows, and is refused otherwise. When not set, a "
        "fit is a run with a name of its own, which is told where it fails.",
        text,
    )

    maxRestarts: Param[int] = Param(
        Params._dummy(),
        "maxRestarts",
        "How many times training is started again after a worker was lost. An error of the module, bad data "
        "or a diverged loss never start it again.",
        Integer(0, 1_000),
    )

    collectiveTimeout: Param[float] = Param(
        Params._dummy(),
        "collectiveTimeout",
        "Seconds that a worker waits for another in one operation before it gives up. A dead worker is "
        "noticed in seconds; this is for one that is slow.",
        Number(0.0, 31_536_000.0, open_below=True),
    )

    heartbeatTimeout: Param[float] = Param(
        Params._dummy(),
        "heartbeatTimeout",
        "Seconds without a sign of life after which a worker counts as lost, though its connections stand: "
        "one that is stopped, or whose network is gone. A virtual machine may pause for some seconds and is "
        "not lost.",
        Number(1.0, 31_536_000.0),
    )

    slotTimeout: Param[float] = Param(
        Params._dummy(),
        "slotTimeout",
        "Seconds to wait for numWorkers free task slots before training is refused. 0 refuses at once.",
        Number(0.0, 31_536_000.0),
    )

    workDir: Param[str] = Param(
        Params._dummy(),
        "workDir",
        "Directory that the driver and all workers can reach, for shards, checkpoints, progress and weights: "
        "a path, or a URI with the scheme file, dbfs, s3, s3a, abfss or gs. When not set, what the session's "
        "spark.flambeau.workDir names, else a temporary directory in local mode; one of the two is required "
        "on a cluster.",
        text,
    )

    inPlace: Param[str] = Param(
        Params._dummy(),
        "inPlace",
        "Whether training reads the rows of a DataFrame in the Parquet files, the Delta or the Iceberg table "
        "that they come from, and no copy of them in workDir: never, auto (where that is possible and a "
        "quarter or more of the rows of their row groups are read), always (else the fit is refused). The "
        "files must stay as they are until the fit has ended.",
        one_of("never", "auto", "always"),
    )

    verbose: Param[int] = Param(
        Params._dummy(),
        "verbose",
        "How much is shown while training: 0 nothing, 1 a progress bar, 2 a line for each epoch.",
        Integer(0, 2),
    )

    tensorBoardDir: Param[str] = Param(
        Params._dummy(),
        "tensorBoardDir",
        "Directory for TensorBoard's event files, where each fit gets a directory of its own: a path, or a "
        "URI as workDir's, that the first worker can write. When not set, there are none.",
        text,
    )

    logEveryNSteps: Param[int] = Param(
        Params._dummy(),
        "logEveryNSteps",
        "Number of optimizer steps from one whose loss, learning rate and gradient norm go to TensorBoard to "
        "the next.",
        Integer(1, 1_000_000),
    )

    profile: Param[str] = Param(
        Params._dummy(),
        "profile",
        'Steps to record a timeline of on all workers, as "steps FIRST-LAST", counted from 0, at most 1000: '
        "what each worker is in, and each of its collectives. It is one file in the work directory, in the "
        "Trace Event Format of Chrome and Perfetto, and the model's summary tells its place. On the CPU "
        "only. When not set, nothing is recorded.",
        text,
    )

    logGradientNorm: Param[bool] = Param(
        Params._dummy(),
        "logGradientNorm",
        "Whether the 2-norm of all gradients, before clipping, is computed in each step: for the history, "
        "which has the mean over an epoch's steps, and for TensorBoard and callbacks. On a GPU it is not "
        "told, since the worker would have to wait for it. With gradientClipNorm it is told in any case.",
        boolean,
    )

    verifyReplicas: Param[bool] = Param(
        Params._dummy(),
        "verifyReplicas",
        "Whether the workers compare hashes of all parameters, buffers and averaged weights after each epoch "
        "and fail where they differ in a single bit. For debugging: it reads every tensor once per epoch.",
        boolean,
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._setDefault(
            numWorkers=1,
            numGpusPerWorker=0,
            memoryBudget=1073741824,
            checkpointInterval=1,
            keepCheckpoints=0,
            maxRestarts=3,
            collectiveTimeout=600.0,
            heartbeatTimeout=30.0,
            slotTimeout=0.0,
            inPlace="auto",
            verbose=1,
            logEveryNSteps=50,
            logGradientNorm=False,
            verifyReplicas=False,
        )

    def setNumWorkers(self, value: int | None) -> Self:
        """Sets `numWorkers`; None unsets it."""
        return self._set(numWorkers=value)

    def getNumWorkers(self) -> int:
        """The value of `numWorkers`, or its default."""
        return self.getOrDefault(self.numWorkers)

    def setDataLanes(self, value: int | None) -> Self:
        """Sets `dataLanes`; None unsets it."""
        return self._set(dataLanes=value)

    def getDataLanes(self) -> int | None:
        """The value of `dataLanes`, None when it is not set."""
        return self._value("dataLanes")

    def setNumThreads(self, value: int | None) -> Self:
        """Sets `numThreads`; None unsets it."""
        return self._set(numThreads=value)

    def getNumThreads(self) -> int | None:
        """The value of `numThreads`, None when it is not set."""
        return self._value("numThreads")

    def setNumGpusPerWorker(self, value: int | None) -> Self:
        """Sets `numGpusPerWorker`; None unsets it."""
        return self._set(numGpusPerWorker=value)

    def getNumGpusPerWorker(self) -> int:
        """The value of `numGpusPerWorker`, or its default."""
        return self.getOrDefault(self.numGpusPerWorker)

    def setMemoryBudget(self, value: int | None) -> Self:
        """Sets `memoryBudget`; None unsets it."""
        return self._set(memoryBudget=value)

    def getMemoryBudget(self) -> int:
        """The value of `memoryBudget`, or its default."""
        return self.getOrDefault(self.memoryBudget)

    def setCheckpointInterval(self, value: int | None) -> Self:
        """Sets `checkpointInterval`; None unsets it."""
        return self._set(checkpointInterval=value)

    def setCheckpointSteps(self, value: int | None) -> Self:
        """Sets `checkpointSteps`; None unsets it."""
        return self._set(checkpointSteps=value)

    def getCheckpointSteps(self) -> int | None:
        """The value of `checkpointSteps`, None when it is not set."""
        return self._value("checkpointSteps")

    def setKeepCheckpoints(self, value: int | None) -> Self:
        """Sets `keepCheckpoints`; None unsets it."""
        return self._set(keepCheckpoints=value)

    def getKeepCheckpoints(self) -> int:
        """The value of `keepCheckpoints`, or its default."""
        return self.getOrDefault(self.keepCheckpoints)

    def setRunId(self, value: str | None) -> Self:
        """Sets `runId`; None unsets it."""
        return self._set(runId=value)

    def getRunId(self) -> str | None:
        """The value of `runId`, None when it is not set."""
        return self._value("runId")

    def setMaxRestarts(self, value: int | None) -> Self:
        """Sets `maxRestarts`; None unsets it."""
        return self._set(maxRestarts=value)

    def getMaxRestarts(self) -> int:
        """The value of `maxRestarts`, or its default."""
        return self.getOrDefault(self.maxRestarts)

    def setCollectiveTimeout(self, value: float | None) -> Self:
        """Sets `collectiveTimeout`; None unsets it."""
        return self._set(collectiveTimeout=value)

    def getCollectiveTimeout(self) -> float:
        """The value of `collectiveTimeout`, or its default."""
        return self.getOrDefault(self.collectiveTimeout)

    def setHeartbeatTimeout(self, value: float | None) -> Self:
        """Sets `heartbeatTimeout`; None unsets it."""
        return self._set(heartbeatTimeout=value)

    def getHeartbeatTimeout(self) -> float:
        """The value of `heartbeatTimeout`, or its default."""
        return self.getOrDefault(self.heartbeatTimeout)

    def setSlotTimeout(self, value: float | None) -> Self:
        """Sets `slotTimeout`; None unsets it."""
        return self._set(slotTimeout=value)

    def getSlotTimeout(self) -> float:
        """The value of `slotTimeout`, or its default."""
        return self.getOrDefault(self.slotTimeout)

    def setWorkDir(self, value: str | None) -> Self:
        """Sets `workDir`; None unsets it."""
        return self._set(workDir=value)

    def getWorkDir(self) -> str | None:
        """The value of `workDir`, None when it is not set."""
        return self._value("workDir")

    def setInPlace(self, value: str | None) -> Self:
        """Sets `inPlace`; None unsets it."""
        return self._set(inPlace=value)

    def getInPlace(self) -> str:
        """The value of `inPlace`, or its default."""
        return self.getOrDefault(self.inPlace)

    def setVerbose(self, value: int | None) -> Self:
        """Sets `verbose`; None unsets it."""
        return self._set(verbose=value)

    def getVerbose(self) -> int:
        """The value of `verbose`, or its default."""
        return self.getOrDefault(self.verbose)

    def setTensorBoardDir(self, value: str | None) -> Self:
        """Sets `tensorBoardDir`; None unsets it."""
        return self._set(tensorBoardDir=value)

    def getTensorBoardDir(self) -> str | None:
        """The value of `tensorBoardDir`, None when it is not set."""
        return self._value("tensorBoardDir")

    def setLogEveryNSteps(self, value: int | None) -> Self:
        """Sets `logEveryNSteps`; None unsets it."""
        return self._set(logEveryNSteps=value)

    def getLogEveryNSteps(self) -> int:
        """The value of `logEveryNSteps`, or its default."""
        return self.getOrDefault(self.logEveryNSteps)

    def setProfile(self, value: str | None) -> Self:
        """Sets `profile`; None unsets it."""
        return self._set(profile=value)

    def getProfile(self) -> str | None:
        """The value of `profile`, None when it is not set."""
        return self._value("profile")

    def setLogGradientNorm(self, value: bool | None) -> Self:
        """Sets `logGradientNorm`; None unsets it."""
        return self._set(logGradientNorm=value)

    def getLogGradientNorm(self) -> bool:
        """The value of `logGradientNorm`, or its default."""
        return self.getOrDefault(self.logGradientNorm)

    def setVerifyReplicas(self, value: bool | None) -> Self:
        """Sets `verifyReplicas`; None unsets it."""
        return self._set(verifyReplicas=value)

    def getVerifyReplicas(self) -> bool:
        """The value of `verifyReplicas`, or its default."""
        return self.getOrDefault(self.verifyReplicas)


class EstimatorArguments(OtherNames, total=False):
    """What `setParams` takes: every param; None unsets one."""

    model: Any
    loss: Any
    optimizer: Any
    metrics: Any
    lrScheduler: Any
    lrSchedulerInterval: str | None
    preprocess: Any
    validationPreprocess: Any
    preprocessThreads: int | None
    callbacks: list[Callback] | None
    runtime: str | None
    featuresCol: str | list[str] | None
    featuresCols: list[str] | None
    inputCols: list[str] | dict[str, str] | None
    inputNames: list[str] | None
    inputShapes: list[list[int]] | None
    inputTypes: list[str] | None
    handleInvalid: str | None
    predictionCol: str | None
    outputCols: list[str] | None
    outputNames: list[str] | None
    outputKinds: list[str] | None
    threshold: float | None
    thresholds: list[float] | None
    inferenceBatchSize: int | None
    inferenceBatchBytes: int | None
    rawPredictionCol: str | None
    probabilityCol: str | None
    labelCol: str | None
    labelCols: list[str] | None
    weightCol: str | None
    initialModel: str | Model | None
    initialState: str | None
    validationIndicatorCol: str | None
    validationFraction: float | None
    batchSize: int | None
    dropLast: bool | None
    epochs: int | None
    seed: int | None
    shuffle: bool | None
    shuffleWindow: int | None
    gradientAccumulationSteps: int | None
    gradientClipNorm: float | None
    gradientClipValue: float | None
    emaDecay: float | None
    syncEvery: int | None
    bucketSize: int | None
    gradientGroups: list[list[str]] | None
    gradientCompression: str | None
    powerSgdRank: int | None
    powerSgdStartStep: int | None
    topKRatio: float | None
    precision: str | None
    compile: bool | None
    learningRate: float | None
    scaleLearningRate: bool | None
    warmupEpochs: float | None
    lrSchedule: str | None
    lrEndFactor: float | None
    lrDecayRate: float | None
    lrDecayEpochs: int | None
    oneCyclePctStart: float | None
    oneCycleDivFactor: float | None
    oneCycleFinalDivFactor: float | None
    plateauPatience: int | None
    plateauThreshold: float | None
    plateauCooldown: int | None
    monitor: str | None
    monitorMode: str | None
    minDelta: float | None
    earlyStoppingPatience: int | None
    restoreBestWeights: bool | None
    device: str | None
    numWorkers: int | None
    dataLanes: int | None
    numThreads: int | None
    numGpusPerWorker: int | None
    memoryBudget: int | None
    checkpointInterval: int | None
    checkpointSteps: int | None
    keepCheckpoints: int | None
    runId: str | None
    maxRestarts: int | None
    collectiveTimeout: float | None
    heartbeatTimeout: float | None
    slotTimeout: float | None
    workDir: str | None
    inPlace: str | None
    verbose: int | None
    tensorBoardDir: str | None
    logEveryNSteps: int | None
    profile: str | None
    logGradientNorm: bool | None
    verifyReplicas: bool | None


class HasConstructor(CheckedParams):
    """The constructor of the estimators."""

    _input_kwargs: dict[str, Any]

    @keyword_only
    def __init__(
        self,
        *,
        model: Any = None,
        loss: Any = None,
        optimizer: Any = "adam",
        metrics: Any = None,
        lrScheduler: Any = None,
        lrSchedulerInterval: str = "epoch",
        preprocess: Any = None,
        validationPreprocess: Any = None,
        preprocessThreads: int = 2,
        callbacks: list[Callback] | None = None,
        runtime: str = "auto",
        featuresCol: str | list[str] = "features",
        featuresCols: list[str] | None = None,
        inputCols: list[str] | dict[str, str] | None = None,
        inputNames: list[str] | None = None,
        inputShapes: list[list[int]] | None = None,
        inputTypes: list[str] | None = None,
        handleInvalid: str = "keep",
        predictionCol: str = "prediction",
        outputCols: list[str] | None = None,
        outputNames: list[str] | None = None,
        outputKinds: list[str] | None = None,
        threshold: float | None = None,
        thresholds: list[float] | None = None,
        inferenceBatchSize: int = 4096,
        inferenceBatchBytes: int = 67108864,
        rawPredictionCol: str = "rawPrediction",
        probabilityCol: str = "probability",
        labelCol: str = "label",
        labelCols: list[str] | None = None,
        weightCol: str | None = None,
        initialModel: str | Model | None = None,
        initialState: str | None = None,
        validationIndicatorCol: str | None = None,
        validationFraction: float = 0.0,
        batchSize: int = 32,
        dropLast: bool = False,
        epochs: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        shuffleWindow: int | None = None,
        gradientAccumulationSteps: int = 1,
        gradientClipNorm: float | None = None,
        gradientClipValue: float | None = None,
        emaDecay: float | None = None,
        syncEvery: int = 1,
        bucketSize: int = 26214400,
        gradientGroups: list[list[str]] | None = None,
        gradientCompression: str = "none",
        powerSgdRank: int = 1,
        powerSgdStartStep: int = 1000,
        topKRatio: float = 0.01,
        precision: str = "float32",
        compile: bool = False,
        learningRate: float | None = None,
        scaleLearningRate: bool = False,
        warmupEpochs: float = 0.0,
        lrSchedule: str = "constant",
        lrEndFactor: float = 0.0,
        lrDecayRate: float = 0.1,
        lrDecayEpochs: int = 10,
        oneCyclePctStart: float = 0.3,
        oneCycleDivFactor: float = 25.0,
        oneCycleFinalDivFactor: float = 10000.0,
        plateauPatience: int = 10,
        plateauThreshold: float = 0.0001,
        plateauCooldown: int = 0,
        monitor: str | None = None,
        monitorMode: str = "auto",
        minDelta: float = 0.0,
        earlyStoppingPatience: int | None = None,
        restoreBestWeights: bool = False,
        device: str = "auto",
        numWorkers: int = 1,
        dataLanes: int | None = None,
        numThreads: int | None = None,
        numGpusPerWorker: int = 0,
        memoryBudget: int = 1073741824,
        checkpointInterval: int = 1,
        checkpointSteps: int | None = None,
        keepCheckpoints: int = 0,
        runId: str | None = None,
        maxRestarts: int = 3,
        collectiveTimeout: float = 600.0,
        heartbeatTimeout: float = 30.0,
        slotTimeout: float = 0.0,
        workDir: str | None = None,
        inPlace: str = "auto",
        verbose: int = 1,
        tensorBoardDir: str | None = None,
        logEveryNSteps: int = 50,
        profile: str | None = None,
        logGradientNorm: bool = False,
        verifyReplicas: bool = False,
        **others: Unpack[OtherNames],
    ) -> None:
        """Makes an estimator; all arguments are keywords.

        Parameters
        ----------
        model : object, default None
            The torch.nn.Module to train, or with runtime native the path of a program.
        loss : object, default None
            A name, a torch.nn loss module, or a callable of outputs and labels.
        optimizer : object, default adam
            A name, an optimizer of the module's parameters, or what makes one.
        metrics : object, default None
            A list of names and callables, or a dict of them by name.
        lrScheduler : object, default None
            A callable that makes torch's scheduler of the optimizer.
        lrSchedulerInterval : str, default epoch
            After what it takes a step: epoch or step.
        preprocess : object, default None
            What makes the module's inputs of a flambeau.preprocessing.Batch.
        validationPreprocess : object, default None
            In place of preprocess for rows that are validated or scored.
        preprocessThreads : int, default 2
            In how many threads of each worker preprocess runs.
        callbacks : list[Callback], default None
            Objects of flambeau.callbacks.Callback, called at the events of a training.
        runtime : str, default auto
            What runs the module: auto, python or native.
        featuresCol : str | list[str], default 'features'
            Name of the features column: a vector, an array or a number. Used when neither featuresCols
            nor inputCols is set.
        featuresCols : list[str], default not set
            Names of numeric columns, which are packed into one tensor in this order. Takes the place of
            featuresCol; used when inputCols is not set.
        inputCols : list[str] | dict[str, str], default not set
            Names of the columns given to the module's forward, one tensor for each argument, in this
            order. When not set, featuresCol or featuresCols is the only input.
        inputNames : list[str], default not set
            Names of the arguments of forward that the inputs are given to, in the order of inputCols: the
            first arguments, in any order. When not set, the inputs are given in the order of inputCols.
        inputShapes : list[list[int]], default not set
            Shape of one row of each input, in the order of inputCols, for columns that hold flattened
            arrays, such as [3, 32, 32] for an image. An empty list leaves that input as its column has
            it. When not set, all are left.
        inputTypes : list[str], default not set
            Type of the tensor of each input, in the order of inputCols: auto, float32, float64, int64,
            bool or uint8. auto follows the column: float, double and decimal give float32; byte, short,
            int and long give int64; boolean gives bool; binary gives uint8. In PySpark also sparse, with
            which vectors and arrays reach preprocess as sparse CSR tensors of float32. When not set, all
            are auto.
        handleInvalid : str, default 'keep'
            What becomes of rows whose features hold a null or a NaN, in training and where a DataFrame is
            transformed or evaluated: keep (a NaN goes on to preprocess or the module, and a null is
            refused), skip (they are left out), error (they are refused). Labels and weights are held to
            their own rules.
        predictionCol : str, default 'prediction'
            Name of the column that the fitted model writes its predictions to. An empty name leaves that
            column out.
        outputCols : list[str], default not set
            Names of columns for the tensors that the module returns, one for each in their order, in
            place of predictionCol; an empty name leaves that tensor out. Not for classifiers, and not
            beside outputNames. When not set, predictionCol has them all.
        outputNames : list[str], default not set
            Names of the fields that predictionCol has where the module returns several tensors, in their
            order. When not set, the keys of a dict, the fields of a named tuple, or _1, _2, ...
        outputKinds : list[str], default not set
            What each tensor that the module returns is, in their order: number, which is written as it
            is; logits, probabilities or log_probabilities of classes; logit or probability of class 1 of
            two; labels or label_probabilities, the logits or probabilities of labels of which a row may
            have several. When not set, a classifier's follows from loss and module, and all others are
            number.
        threshold : float, default not set
            What the probability of class 1 of two, or of a label, has to exceed to be predicted. When not
            set, 0.5, or what thresholds says.
        thresholds : list[float], default not set
            One threshold for each class: the class with the largest ratio of probability and threshold is
            predicted. Of labels, what the probability of each has to exceed. When not set, the largest
            probability counts, or what threshold says.
        inferenceBatchSize : int, default 4096
            Number of rows given to the module at once when the fitted model transforms a DataFrame.
        inferenceBatchBytes : int, default 67108864 (expert)
            Bytes that an input or an output may take of the rows given to the module at once, which are
            fewer than inferenceBatchSize where they take more. A single row may take more.
        rawPredictionCol : str, default 'rawPrediction'
            Name of the column that a fitted classifier writes the module's raw outputs (logits) to, as a
            vector. An empty name leaves that column out.
        probabilityCol : str, default 'probability'
            Name of the column that a fitted classifier writes the probability of each class to, as a
            vector. An empty name leaves that column out.
        labelCol : str, default 'label'
            Name of the label column. Used when labelCols is not set.
        labelCols : list[str], default not set
            Names of several label columns, given to the loss as one tuple of tensors in this order. When
            not set, labelCol is the only label.
        weightCol : str, default not set
            Name of the column with the weight of each row, a number that is not negative. When not set,
            every row weighs 1.
        initialModel : str | Model, default not set
            Directory of a saved model whose weights training starts from; they must be those of a module
            like the one that is trained. When not set, training starts from the module's own weights.
        initialState : str, default not set
            Directory of a checkpoint that an earlier fit kept (keepCheckpoints), from whose optimizer's
            state training starts: its momenta and numbers of steps. The optimizer must be of the same
            kind and have the same parameters; the weights are initialModel's, and rates and other options
            those of optimizer. When not set, the optimizer begins anew.
        validationIndicatorCol : str, default not set
            Name of a boolean column: rows where it is true are used for validation and not for training.
            Takes the place of validationFraction. When not set, validationFraction decides.
        validationFraction : float, default 0.0
            Fraction of the rows that are kept out of training, by a seeded random choice, and used for
            validation after each epoch. 0 means no validation.
        batchSize : int, default 32
            Number of rows in a batch of one worker. The global batch has batchSize x numWorkers rows.
        dropLast : bool, default False
            Whether the last batch of an epoch is left out where it would be smaller than the others.
        epochs : int, default 1
            Number of passes over the training rows.
        seed : int, default 0
            Seed of the order of the rows, of the choice made by validationFraction and of the random
            generators of the workers.
        shuffle : bool, default True
            Whether the rows are shuffled, anew in every epoch. When false they are read in the order of
            the data.
        shuffleWindow : int, default not set (expert)
            Number of rows that are shuffled together in memory by each lane. Larger mixes better and
            takes more memory. When not set, as many as fit in 64 MiB, but at least 4096 and at most
            1048576.
        gradientAccumulationSteps : int, default 1
            Number of batches whose gradients are accumulated before each step of the optimizer. The step
            is that of one batch that many times larger.
        gradientClipNorm : float, default not set
            Largest 2-norm of all gradients together; larger gradients are scaled down to it before each
            step of the optimizer. When not set, gradients are not clipped.
        gradientClipValue : float, default not set
            Largest magnitude of each entry of the gradients; larger entries are cut to it before each
            step of the optimizer. Not together with gradientClipNorm, and not on GPUs. When not set,
            gradients are not clipped.
        emaDecay : float, default not set
            Decay of an exponential moving average of the weights: after each step of the optimizer the
            average is emaDecay of itself and the rest of the weights. Validation rows are evaluated with
            it, and the fitted model has it. Not on GPUs. When not set, the weights are those of the
            optimizer.
        syncEvery : int, default 1 (expert)
            Steps of the optimizer between two averages. With 1 the workers average their gradients in
            each step. With more each steps on its own gradients, and after so many steps, before each
            checkpoint and at the end of each epoch the weights and the optimizer's state are averaged
            (local SGD). Not on GPUs, nor with gradientCompression, gradientGroups, emaDecay or precision
            fp16.
        bucketSize : int, default 26214400 (expert)
            Bytes of gradients that are reduced at once: while backward goes on, a bucket is reduced as
            soon as its gradients are there. The first one is closed at 1 MiB where that is less. Larger
            ones make fewer messages, smaller ones begin earlier.
        gradientGroups : list[list[str]], default not set (expert)
            Names of parameters whose gradients are reduced together, as soon as the last of them is
            there, a list for each group, such as [["encoder.weight", "encoder.bias"]]: a group is a
            bucket of its own, whatever its bytes, and one for each type where its parameters have
            several. The others are in buckets by bucketSize, as all are when it is not set.
        gradientCompression : str, default 'none'
            What float32 gradients travel as between the workers: none, as they are; fp16 or bf16, as
            16-bit floats, summed in float32 between CPUs, where fp16 has more digits and bf16 the range
            of float32; powersgd, matrices as products of two thin ones; topk, the largest entries alone.
            With powersgd and topk, which GPUs do not have, a worker adds what it has not sent to its next
            gradients. It pays where the network is slow; workers of one host share memory and are slower
            with it. All workers get the same bits.
        powerSgdRank : int, default 1 (expert)
            Number of columns of the two matrices that gradientCompression powersgd makes of a gradient:
            more are nearer to it and take longer.
        powerSgdStartStep : int, default 1000 (expert)
            Number of optimizer steps before gradientCompression powersgd begins, while gradients travel
            as they are: the first ones change the most.
        topKRatio : float, default 0.01 (expert)
            Share of the entries of each parameter's gradient that gradientCompression topk sends, rounded
            up.
        precision : str, default 'float32'
            Type that forward and loss are computed in: float32, which leaves the module as it is; tf32,
            which is float32 but for the matrix products and convolutions of GPUs, and float32 to the bit
            on a CPU; bf16 or fp16, which run both under torch's autocast to bfloat16 or float16 while
            weights, gradients and optimizer keep their type, fp16 with dynamic loss scaling. bf16 is
            faster on processors with AMX or AVX-512 BF16 instructions, and slower, not wrong, on others;
            fp16 is meant for GPUs. The fitted model predicts in the module's own type.
        compile : bool, default False
            Whether the module is compiled by torch.compile for training. Where that fails it trains as it
            is, and a warning says why. The fitted model holds the module as it was given. The native
            runtime, whose programs are compiled already, refuses it.
        learningRate : float, default not set
            Learning rate. When not set, the rate that the optimizer was made with is kept.
        scaleLearningRate : bool, default False
            Whether the learning rate is multiplied by numWorkers, since the global batch is that many
            times larger than one worker's. With warmupEpochs it grows from the rate of one worker.
        warmupEpochs : float, default 0.0
            Number of epochs, which need not be whole, over which the learning rate grows step by step to
            its full value, at most epochs. 0 begins with that.
        lrSchedule : str, default 'constant'
            How the learning rate falls after the warm-up: constant, not at all; linear or cosine, step by
            step to lrEndFactor of it at the end of the last epoch; step, to lrDecayRate of what it was
            after every lrDecayEpochs epochs; exponential, by as much, but evenly in each step; plateau,
            to lrDecayRate of what it was whenever monitor has not got better for more than
            plateauPatience epochs. onecycle has a warm-up of its own: the rate rises to its full value
            and falls to almost nothing, by the three params that begin with oneCycle; the momentum stays
            as it is.
        lrEndFactor : float, default 0.0
            What lrSchedule linear and cosine leave of the learning rate at the end of the last epoch, and
            the least that plateau leaves of it.
        lrDecayRate : float, default 0.1
            What lrSchedule step and exponential multiply the learning rate by in lrDecayEpochs epochs,
            and plateau at a time.
        lrDecayEpochs : int, default 10
            Number of epochs in which lrSchedule step and exponential multiply the learning rate by
            lrDecayRate.
        oneCyclePctStart : float, default 0.3 (expert)
            Share of all optimizer steps in which the learning rate rises, with lrSchedule onecycle.
        oneCycleDivFactor : float, default 25.0 (expert)
            What the learning rate is divided by in the first step, with lrSchedule onecycle.
        oneCycleFinalDivFactor : float, default 10000.0 (expert)
            What the learning rate of the first step is divided by in the last one, with lrSchedule
            onecycle.
        plateauPatience : int, default 10
            Number of epochs in a row without a better value of monitor that lrSchedule plateau lets pass;
            one more, and the learning rate falls.
        plateauThreshold : float, default 0.0001 (expert)
            By what share of the best value so far monitor must be better for lrSchedule plateau to count
            it as such.
        plateauCooldown : int, default 0 (expert)
            Number of epochs after the learning rate fell in which lrSchedule plateau does not count.
        monitor : str, default not set
            Name of the loss or metric in the history that says which epoch was the best, such as val_loss
            or val_accuracy. When not set, val_loss where there are validation rows, else loss.
        monitorMode : str, default 'auto'
            Whether the smaller (min) or the larger (max) value of monitor is better. auto goes by its
            name, for the loss and the named metrics.
        minDelta : float, default 0.0
            By how much more than this an epoch must be better than the best one so far to become the
            best.
        earlyStoppingPatience : int, default not set
            Number of epochs in a row without a new best one after which training stops. When not set, it
            takes all epochs.
        restoreBestWeights : bool, default False
            Whether the fitted model has the weights of the best epoch, by monitor, rather than of the
            last.
        device : str, default 'auto'
            Where modules are trained and score: cpu; cuda, on one GPU for each worker, which is the one
            that Spark has assigned to its task, else one of the machine's that no other worker has; auto,
            on GPUs where every worker has one that torch can use, and on the CPU where none has. Fewer
            GPUs than workers and machines of which only some have GPUs are refused unless it is cpu.
        numWorkers : int, default 1
            Number of workers that train together. Each is one task of a barrier stage and needs one free
            task slot.
        dataLanes : int, default not set (expert)
            Number of lanes that the rows are dealt to. The order of the rows depends on the lanes and not
            on the workers, so runs with the same dataLanes and the same global batch (batchSize x
            numWorkers) see the same batches on any number of workers up to dataLanes. Must divide the
            global batch. When not set, numWorkers.
        numThreads : int, default not set (expert)
            Number of threads that torch computes with in each worker. When not set, the cores of the
            machine are shared evenly among its workers.
        numGpusPerWorker : int, default 0
            Number of GPUs that Spark is asked for with the task of each worker: 1 schedules the training
            by a resource profile of its own (stage-level scheduling), 0 asks for none. Workers then have
            the GPUs that spark.task.resource.gpu.amount gives them, else those that they find.
        memoryBudget : int, default 1073741824 (expert)
            Bytes that each worker may use for decoded rows. A worker whose share of the data fits decodes
            it once and keeps it; otherwise it decodes the rows again in every epoch.
        checkpointInterval : int, default 1
            Number of epochs between checkpoints, from the newest of which training goes on after a worker
            was lost. -1 turns checkpoints at the end of epochs off.
        checkpointSteps : int, default not set
            Number of optimizer steps between further checkpoints, for epochs that take long. When not
            set, there are checkpoints at the end of epochs only.
        keepCheckpoints : int, default 0
            Number of checkpoints that a fit which succeeds leaves in the work directory: the newest ones,
            with the weights as a file of their own, the last of them from the end of the training. 0
            leaves none.
        runId : str, default not set
            Name of the run in the work directory, of letters, digits, - and _. A fit that fails or is
            interrupted keeps its checkpoints, and the next one with the same runId goes on from the
            newest, to the same bits. It must be the same job on the same rows, and is refused otherwise.
            When not set, a fit is a run with a name of its own, which is told where it fails.
        maxRestarts : int, default 3
            How many times training is started again after a worker was lost. An error of the module, bad
            data or a diverged loss never start it again.
        collectiveTimeout : float, default 600.0 (expert)
            Seconds that a worker waits for another in one operation before it gives up. A dead worker is
            noticed in seconds; this is for one that is slow.
        heartbeatTimeout : float, default 30.0 (expert)
            Seconds without a sign of life after which a worker counts as lost, though its connections
            stand: one that is stopped, or whose network is gone. A virtual machine may pause for some
            seconds and is not lost.
        slotTimeout : float, default 0.0 (expert)
            Seconds to wait for numWorkers free task slots before training is refused. 0 refuses at once.
        workDir : str, default not set
            Directory that the driver and all workers can reach, for shards, checkpoints, progress and
            weights: a path, or a URI with the scheme file, dbfs, s3, s3a, abfss or gs. When not set, what
            the session's spark.flambeau.workDir names, else a temporary directory in local mode; one of
            the two is required on a cluster.
        inPlace : str, default 'auto'
            Whether training reads the rows of a DataFrame in the Parquet files, the Delta or the Iceberg
            table that they come from, and no copy of them in workDir: never, auto (where that is possible
            and a quarter or more of the rows of their row groups are read), always (else the fit is
            refused). The files must stay as they are until the fit has ended.
        verbose : int, default 1
            How much is shown while training: 0 nothing, 1 a progress bar, 2 a line for each epoch.
        tensorBoardDir : str, default not set
            Directory for TensorBoard's event files, where each fit gets a directory of its own: a path,
            or a URI as workDir's, that the first worker can write. When not set, there are none.
        logEveryNSteps : int, default 50
            Number of optimizer steps from one whose loss, learning rate and gradient norm go to
            TensorBoard to the next.
        profile : str, default not set
            Steps to record a timeline of on all workers, as "steps FIRST-LAST", counted from 0, at most
            1000: what each worker is in, and each of its collectives. It is one file in the work
            directory, in the Trace Event Format of Chrome and Perfetto, and the model's summary tells its
            place. On the CPU only. When not set, nothing is recorded.
        logGradientNorm : bool, default False
            Whether the 2-norm of all gradients, before clipping, is computed in each step: for the
            history, which has the mean over an epoch's steps, and for TensorBoard and callbacks. On a GPU
            it is not told, since the worker would have to wait for it. With gradientClipNorm it is told
            in any case.
        verifyReplicas : bool, default False (expert)
            Whether the workers compare hashes of all parameters, buffers and averaged weights after each
            epoch and fail where they differ in a single bit. For debugging: it reads every tensor once
            per epoch.
        others
            stepSize for learningRate, and Horovod's names: num_proc, feature_cols and the like.

        Raises ParamError for a name that there is not, and for a value that is not allowed.
        """
        arguments = self.__dict__.pop("_input_kwargs")
        super().__init__()
        self.setParams(**arguments)

    def setParams(self, **arguments: Unpack[EstimatorArguments]) -> Self:
        """Sets params by the names that the constructor takes; None unsets one."""
        return self._set(**resolve_arguments(self, arguments))
