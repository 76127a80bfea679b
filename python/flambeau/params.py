"""The params of the estimators and models: Spark ML's own where it has one, and ours beside them.

Names, defaults, bounds and docs are those of the training job's schema (`docs/training-job.schema.json`),
which a test holds them against. A value of None unsets a param.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pyspark.ml.param import Param, Params
from pyspark.ml.param.shared import (
    HasCheckpointInterval,
    HasFeaturesCol,
    HasInputCols,
    HasLabelCol,
    HasPredictionCol,
    HasProbabilityCol,
    HasRawPredictionCol,
    HasSeed,
    HasStepSize,
    HasValidationIndicatorCol,
    HasWeightCol,
)

from flambeau._converters import (
    Integer,
    Number,
    boolean,
    input_types,
    one_of,
    saved_model,
    shapes,
    text,
    text_list,
    text_or_empty,
    text_or_list,
)
from flambeau._objects import CheckedParams

if TYPE_CHECKING:
    from flambeau.model import TorchModel


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


class HasOutputColumns(CheckedParams, HasPredictionCol):
    """What a fitted model writes, and how many rows it scores at once."""

    predictionCol: Param[str] = Param(
        Params._dummy(),
        "predictionCol",
        "Name of the column that the fitted model writes its predictions to. An empty name leaves that "
        "column out.",
        text_or_empty,
    )

    inferenceBatchSize: Param[int] = Param(
        Params._dummy(),
        "inferenceBatchSize",
        "Number of rows given to the module at once when the fitted model transforms a DataFrame.",
        Integer(1, 16_777_216),
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._setDefault(predictionCol="prediction", inferenceBatchSize=4096)

    def setPredictionCol(self, value: str) -> Self:
        """Sets `predictionCol`."""
        return self._set(predictionCol=value)

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


class HasInitialModel(CheckedParams):
    """Whose weights training starts from."""

    initialModel: Param[str | TorchModel] = Param(
        Params._dummy(),
        "initialModel",
        "Directory of a saved model whose weights training starts from; they must be those of a module "
        "like the one that is trained. When not set, training starts from the module's own weights.",
        saved_model,
    )

    def setInitialModel(self, value: str | TorchModel) -> Self:
        """Sets `initialModel`, to a saved model's directory or to a fitted model. An estimator that is to be
        saved takes the directory.
        """
        return self._set(initialModel=value)

    def getInitialModel(self) -> str | TorchModel | None:
        """The value of `initialModel`, None when it is not set."""
        return self._value("initialModel")


class HasTrainingLoop(CheckedParams, HasSeed, HasStepSize):
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
        "Whether the rows are shuffled, anew in every epoch. When false they are read in the order of "
        "the data.",
        boolean,
    )

    shuffleWindow: Param[int] = Param(
        Params._dummy(),
        "shuffleWindow",
        "Number of rows that are shuffled together in memory by each lane. Larger mixes better and "
        "takes more memory. When not set, as many as fit in 64 MiB, but at least 4096 and at most "
        "1048576.",
        Integer(1, 1_073_741_824),
    )

    stepSize: Param[float] = Param(
        Params._dummy(),
        "stepSize",
        "Learning rate. When not set, the rate that the optimizer was made with is kept.",
        Number(0.0),
    )

    gradientAccumulationSteps: Param[int] = Param(
        Params._dummy(),
        "gradientAccumulationSteps",
        "Number of batches whose gradients are accumulated before each step of the optimizer. The "
        "step is that of one batch that many times larger.",
        Integer(1, 1_000_000),
    )

    gradientClipNorm: Param[float] = Param(
        Params._dummy(),
        "gradientClipNorm",
        "Largest 2-norm of all gradients together; larger gradients are scaled down to it before each "
        "step of the optimizer. When not set, gradients are not clipped.",
        Number(0.0, open_below=True),
    )

    gradientCompression: Param[str] = Param(
        Params._dummy(),
        "gradientCompression",
        "What float32 gradients travel as between the workers: none, as they are; fp16 or bf16, as 16-bit "
        "floats, summed in float32 between CPUs, where fp16 has more digits and bf16 the range of float32; "
        "powersgd, matrices as products of two thin ones; topk, the largest entries alone. With powersgd and "
        "topk a worker adds what it has not sent to its next gradients. It pays where the network is slow; "
        "workers of one host share memory and are slower with it. All workers get the same bits.",
        one_of("none", "fp16", "bf16", "powersgd", "topk"),
    )

    powerSgdRank: Param[int] = Param(
        Params._dummy(),
        "powerSgdRank",
        "Number of columns of the two matrices that gradientCompression powersgd makes of a gradient: more "
        "are nearer to it and take longer.",
        Integer(1, 1024),
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
        "Type that forward and loss are computed in: float32, which leaves the module as it is; tf32, "
        "which is float32 but for the matrix products and convolutions of GPUs, and float32 to the bit on "
        "a CPU; bf16 or fp16, which run both under torch's autocast to bfloat16 or float16 while weights, "
        "gradients and optimizer keep their type, fp16 with dynamic loss scaling. bf16 is faster on "
        "processors with AMX or AVX-512 BF16 instructions, and slower, not wrong, on others; fp16 is meant"
        " for GPUs. The fitted model predicts in the module's own type.",
        one_of("float32", "tf32", "bf16", "fp16"),
    )

    compile: Param[bool] = Param(
        Params._dummy(),
        "compile",
        "Whether the module is compiled by torch.compile for training. Where that fails it trains as it "
        "is, and a warning says why. The fitted model holds the module as it was given. The native "
        "runtime, whose programs are compiled already, refuses it.",
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
            gradientCompression="none",
            powerSgdRank=1,
            powerSgdStartStep=1000,
            topKRatio=0.01,
            precision="float32",
            compile=False,
        )

    def setBatchSize(self, value: int) -> Self:
        """Sets `batchSize`."""
        return self._set(batchSize=value)

    def getBatchSize(self) -> int:
        """The value of `batchSize`, or its default."""
        return self.getOrDefault(self.batchSize)

    def setDropLast(self, value: bool) -> Self:
        """Sets `dropLast`."""
        return self._set(dropLast=value)

    def getDropLast(self) -> bool:
        """The value of `dropLast`, or its default."""
        return self.getOrDefault(self.dropLast)

    def setEpochs(self, value: int) -> Self:
        """Sets `epochs`."""
        return self._set(epochs=value)

    def getEpochs(self) -> int:
        """The value of `epochs`, or its default."""
        return self.getOrDefault(self.epochs)

    def setSeed(self, value: int) -> Self:
        """Sets `seed`."""
        return self._set(seed=value)

    def setShuffle(self, value: bool) -> Self:
        """Sets `shuffle`."""
        return self._set(shuffle=value)

    def getShuffle(self) -> bool:
        """The value of `shuffle`, or its default."""
        return self.getOrDefault(self.shuffle)

    def setShuffleWindow(self, value: int) -> Self:
        """Sets `shuffleWindow`."""
        return self._set(shuffleWindow=value)

    def getShuffleWindow(self) -> int | None:
        """The value of `shuffleWindow`, None when it is not set."""
        return self._value("shuffleWindow")

    def setStepSize(self, value: float) -> Self:
        """Sets `stepSize`."""
        return self._set(stepSize=value)

    def setGradientAccumulationSteps(self, value: int) -> Self:
        """Sets `gradientAccumulationSteps`."""
        return self._set(gradientAccumulationSteps=value)

    def getGradientAccumulationSteps(self) -> int:
        """The value of `gradientAccumulationSteps`, or its default."""
        return self.getOrDefault(self.gradientAccumulationSteps)

    def setGradientClipNorm(self, value: float) -> Self:
        """Sets `gradientClipNorm`."""
        return self._set(gradientClipNorm=value)

    def getGradientClipNorm(self) -> float | None:
        """The value of `gradientClipNorm`, None when it is not set."""
        return self._value("gradientClipNorm")

    def setGradientCompression(self, value: str) -> Self:
        """Sets `gradientCompression`."""
        return self._set(gradientCompression=value)

    def getGradientCompression(self) -> str:
        """The value of `gradientCompression`, or its default."""
        return self.getOrDefault(self.gradientCompression)

    def setPowerSgdRank(self, value: int) -> Self:
        """Sets `powerSgdRank`."""
        return self._set(powerSgdRank=value)

    def getPowerSgdRank(self) -> int:
        """The value of `powerSgdRank`, or its default."""
        return self.getOrDefault(self.powerSgdRank)

    def setPowerSgdStartStep(self, value: int) -> Self:
        """Sets `powerSgdStartStep`."""
        return self._set(powerSgdStartStep=value)

    def getPowerSgdStartStep(self) -> int:
        """The value of `powerSgdStartStep`, or its default."""
        return self.getOrDefault(self.powerSgdStartStep)

    def setTopKRatio(self, value: float) -> Self:
        """Sets `topKRatio`."""
        return self._set(topKRatio=value)

    def getTopKRatio(self) -> float:
        """The value of `topKRatio`, or its default."""
        return self.getOrDefault(self.topKRatio)

    def setPrecision(self, value: str) -> Self:
        """Sets `precision`."""
        return self._set(precision=value)

    def getPrecision(self) -> str:
        """The value of `precision`, or its default."""
        return self.getOrDefault(self.precision)

    def setCompile(self, value: bool) -> Self:
        """Sets `compile`."""
        return self._set(compile=value)

    def getCompile(self) -> bool:
        """The value of `compile`, or its default."""
        return self.getOrDefault(self.compile)


class HasDevice(CheckedParams):
    """Where the module runs."""

    device: Param[str] = Param(
        Params._dummy(),
        "device",
        "Where modules are trained and score: cpu; cuda, on one GPU for each worker, which is the one "
        "that Spark has assigned to its task, else one of the machine's that no other worker has; auto, "
        "on GPUs where every worker has one that torch can use, and on the CPU where none has. Fewer "
        "GPUs than workers and machines of which only some have GPUs are refused unless it is cpu.",
        one_of("auto", "cpu", "cuda"),
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._setDefault(device="auto")

    def setDevice(self, value: str) -> Self:
        """Sets `device`."""
        return self._set(device=value)

    def getDevice(self) -> str:
        """The value of `device`, or its default."""
        return self.getOrDefault(self.device)


class HasWorkers(CheckedParams, HasCheckpointInterval):
    """How many workers train, what they may use, and what happens when one is lost."""

    numWorkers: Param[int] = Param(
        Params._dummy(),
        "numWorkers",
        "Number of workers that train together. Each is one task of a barrier stage and needs one "
        "free task slot.",
        Integer(1, 4096),
    )

    dataLanes: Param[int] = Param(
        Params._dummy(),
        "dataLanes",
        "Number of lanes that the rows are cut into. The order of the rows depends on the lanes and "
        "not on the workers, so runs with the same dataLanes and the same global batch (batchSize x "
        "numWorkers) see the same batches on any number of workers up to dataLanes. Must divide the "
        "global batch. When not set, numWorkers.",
        Integer(1, 65536),
    )

    numThreads: Param[int] = Param(
        Params._dummy(),
        "numThreads",
        "Number of threads that torch computes with in each worker. When not set, the cores of the "
        "machine are shared evenly among its workers.",
        Integer(1, 4096),
    )

    numGpusPerWorker: Param[int] = Param(
        Params._dummy(),
        "numGpusPerWorker",
        "Number of GPUs that Spark is asked for with the task of each worker: 1 schedules the training "
        "by a resource profile of its own (stage-level scheduling), 0 asks for none. Workers then have "
        "the GPUs that spark.task.resource.gpu.amount gives them, else those that they find.",
        Integer(0, 1),
    )

    memoryBudget: Param[int] = Param(
        Params._dummy(),
        "memoryBudget",
        "Bytes that each worker may use for decoded rows. A worker whose share of the data fits "
        "decodes it once and keeps it; otherwise it decodes the rows again in every epoch.",
        Integer(1_048_576),
    )

    checkpointInterval: Param[int] = Param(
        Params._dummy(),
        "checkpointInterval",
        "Number of epochs between checkpoints, from the newest of which training goes on after a "
        "worker was lost. -1 turns checkpoints at the end of epochs off.",
        Integer(-1, 1_000_000, without=0),
    )

    checkpointSteps: Param[int] = Param(
        Params._dummy(),
        "checkpointSteps",
        "Number of optimizer steps between further checkpoints, for epochs that take long. When not "
        "set, there are checkpoints at the end of epochs only.",
        Integer(1),
    )

    maxRestarts: Param[int] = Param(
        Params._dummy(),
        "maxRestarts",
        "How many times training is started again after a worker was lost. An error of the module, "
        "bad data or a diverged loss never start it again.",
        Integer(0, 1000),
    )

    timeout: Param[float] = Param(
        Params._dummy(),
        "timeout",
        "Seconds that a worker waits for another in one operation before it gives up. A dead worker "
        "is noticed in seconds; this is for one that is slow.",
        Number(0.0, 31_536_000.0, open_below=True),
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
        "Directory that the driver and all workers can reach, for shards, checkpoints, progress and "
        "weights: a path, or a URI with the scheme file, dbfs, s3, s3a, abfss or gs. When not set, a "
        "temporary directory in local mode; required on a cluster.",
        text,
    )

    verbose: Param[int] = Param(
        Params._dummy(),
        "verbose",
        "How much is shown while training: 0 nothing, 1 a progress bar.",
        Integer(0, 1),
    )

    verifyReplicas: Param[bool] = Param(
        Params._dummy(),
        "verifyReplicas",
        "Whether the workers compare hashes of all parameters and buffers after each epoch and fail "
        "where they differ in a single bit. For debugging: it reads every tensor once per epoch.",
        boolean,
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._setDefault(
            numWorkers=1,
            numGpusPerWorker=0,
            memoryBudget=1 << 30,
            checkpointInterval=1,
            maxRestarts=3,
            timeout=600.0,
            slotTimeout=0.0,
            verbose=1,
            verifyReplicas=False,
        )

    def setNumWorkers(self, value: int) -> Self:
        """Sets `numWorkers`."""
        return self._set(numWorkers=value)

    def getNumWorkers(self) -> int:
        """The value of `numWorkers`, or its default."""
        return self.getOrDefault(self.numWorkers)

    def setDataLanes(self, value: int) -> Self:
        """Sets `dataLanes`."""
        return self._set(dataLanes=value)

    def getDataLanes(self) -> int | None:
        """The value of `dataLanes`, None when it is not set."""
        return self._value("dataLanes")

    def setNumThreads(self, value: int) -> Self:
        """Sets `numThreads`."""
        return self._set(numThreads=value)

    def getNumThreads(self) -> int | None:
        """The value of `numThreads`, None when it is not set."""
        return self._value("numThreads")

    def setNumGpusPerWorker(self, value: int) -> Self:
        """Sets `numGpusPerWorker`."""
        return self._set(numGpusPerWorker=value)

    def getNumGpusPerWorker(self) -> int:
        """The value of `numGpusPerWorker`, or its default."""
        return self.getOrDefault(self.numGpusPerWorker)

    def setMemoryBudget(self, value: int) -> Self:
        """Sets `memoryBudget`."""
        return self._set(memoryBudget=value)

    def getMemoryBudget(self) -> int:
        """The value of `memoryBudget`, or its default."""
        return self.getOrDefault(self.memoryBudget)

    def setCheckpointInterval(self, value: int) -> Self:
        """Sets `checkpointInterval`."""
        return self._set(checkpointInterval=value)

    def setCheckpointSteps(self, value: int) -> Self:
        """Sets `checkpointSteps`."""
        return self._set(checkpointSteps=value)

    def getCheckpointSteps(self) -> int | None:
        """The value of `checkpointSteps`, None when it is not set."""
        return self._value("checkpointSteps")

    def setMaxRestarts(self, value: int) -> Self:
        """Sets `maxRestarts`."""
        return self._set(maxRestarts=value)

    def getMaxRestarts(self) -> int:
        """The value of `maxRestarts`, or its default."""
        return self.getOrDefault(self.maxRestarts)

    def setTimeout(self, value: float) -> Self:
        """Sets `timeout`."""
        return self._set(timeout=value)

    def getTimeout(self) -> float:
        """The value of `timeout`, or its default."""
        return self.getOrDefault(self.timeout)

    def setSlotTimeout(self, value: float) -> Self:
        """Sets `slotTimeout`."""
        return self._set(slotTimeout=value)

    def getSlotTimeout(self) -> float:
        """The value of `slotTimeout`, or its default."""
        return self.getOrDefault(self.slotTimeout)

    def setWorkDir(self, value: str) -> Self:
        """Sets `workDir`."""
        return self._set(workDir=value)

    def getWorkDir(self) -> str | None:
        """The value of `workDir`, None when it is not set."""
        return self._value("workDir")

    def setVerbose(self, value: int) -> Self:
        """Sets `verbose`."""
        return self._set(verbose=value)

    def getVerbose(self) -> int:
        """The value of `verbose`, or its default."""
        return self.getOrDefault(self.verbose)

    def setVerifyReplicas(self, value: bool) -> Self:
        """Sets `verifyReplicas`."""
        return self._set(verifyReplicas=value)

    def getVerifyReplicas(self) -> bool:
        """The value of `verifyReplicas`, or its default."""
        return self.getOrDefault(self.verifyReplicas)


class HasRuntime(CheckedParams):
    """What runs the module. Python's alone: the JVM has the native runtime only."""

    runtime: Param[str] = Param(
        Params._dummy(),
        "runtime",
        "What runs the module: python runs it as it is in Spark's Python workers, native runs it as a "
        "libtorch program, made with TorchScript or torch.export, without Python: it trains in processes of "
        "its own, and scores in the executors' JVMs, for which the session needs Flambeau's jar. To train, "
        "native takes losses, optimizers and metrics by name, and a model that is the path of such a program "
        "too.",
        one_of("python", "native"),
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._setDefault(runtime="python")

    def setRuntime(self, value: str) -> Self:
        """Sets `runtime`."""
        return self._set(runtime=value)

    def getRuntime(self) -> str:
        """The value of `runtime`, or its default."""
        return self.getOrDefault(self.runtime)


class HasTrainingParams(
    HasInputColumns,
    HasOutputColumns,
    HasClassColumns,
    HasLabelColumns,
    HasInitialModel,
    HasValidation,
    HasTrainingLoop,
    HasDevice,
    HasWorkers,
):
    """Every param of a training job."""
