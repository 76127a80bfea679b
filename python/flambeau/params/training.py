"""Params of the training itself: the loop, the learning rate, and when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pyspark.ml.param import Param, Params
from pyspark.ml.param.shared import (
    HasSeed,
    HasStepSize,
)

from flambeau.params.converters import (
    Integer,
    Number,
    boolean,
    one_of,
    saved_model,
    text,
)
from flambeau.params.objects import CheckedParams

if TYPE_CHECKING:
    from flambeau.model import TorchModel


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


class HasLearningRate(CheckedParams, HasStepSize):
    """The learning rate over the training."""

    stepSize: Param[float] = Param(
        Params._dummy(),
        "stepSize",
        "Learning rate. When not set, the rate that the optimizer was made with is kept.",
        Number(0.0),
    )

    scaleLearningRate: Param[bool] = Param(
        Params._dummy(),
        "scaleLearningRate",
        "Whether the learning rate is multiplied by numWorkers, since the global batch is that many "
        "times larger than one worker's. With warmupEpochs it grows from the rate of one worker.",
        boolean,
    )

    warmupEpochs: Param[float] = Param(
        Params._dummy(),
        "warmupEpochs",
        "Number of epochs, which need not be whole, over which the learning rate grows step by step to "
        "its full value, at most epochs. 0 begins with that.",
        Number(0.0),
    )

    lrSchedule: Param[str] = Param(
        Params._dummy(),
        "lrSchedule",
        "How the learning rate falls after the warm-up: constant, not at all; linear or cosine, step by "
        "step to lrEndFactor of it at the end of the last epoch; step, to lrDecayRate of what it was "
        "after every lrDecayEpochs epochs; exponential, by as much, but evenly in each step.",
        one_of("constant", "linear", "cosine", "step", "exponential"),
    )

    lrEndFactor: Param[float] = Param(
        Params._dummy(),
        "lrEndFactor",
        "What lrSchedule linear and cosine leave of the learning rate at the end of the last epoch.",
        Number(0.0, 1.0),
    )

    lrDecayRate: Param[float] = Param(
        Params._dummy(),
        "lrDecayRate",
        "What lrSchedule step and exponential multiply the learning rate by in lrDecayEpochs epochs.",
        Number(0.0, 1.0, open_below=True),
    )

    lrDecayEpochs: Param[int] = Param(
        Params._dummy(),
        "lrDecayEpochs",
        "Number of epochs in which lrSchedule step and exponential multiply the learning rate by "
        "lrDecayRate.",
        Integer(1, 1_000_000),
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
        )

    def setStepSize(self, value: float) -> Self:
        """Sets `stepSize`."""
        return self._set(stepSize=value)

    def setScaleLearningRate(self, value: bool) -> Self:
        """Sets `scaleLearningRate`."""
        return self._set(scaleLearningRate=value)

    def getScaleLearningRate(self) -> bool:
        """The value of `scaleLearningRate`, or its default."""
        return self.getOrDefault(self.scaleLearningRate)

    def setWarmupEpochs(self, value: float) -> Self:
        """Sets `warmupEpochs`."""
        return self._set(warmupEpochs=value)

    def getWarmupEpochs(self) -> float:
        """The value of `warmupEpochs`, or its default."""
        return self.getOrDefault(self.warmupEpochs)

    def setLrSchedule(self, value: str) -> Self:
        """Sets `lrSchedule`."""
        return self._set(lrSchedule=value)

    def getLrSchedule(self) -> str:
        """The value of `lrSchedule`, or its default."""
        return self.getOrDefault(self.lrSchedule)

    def setLrEndFactor(self, value: float) -> Self:
        """Sets `lrEndFactor`."""
        return self._set(lrEndFactor=value)

    def getLrEndFactor(self) -> float:
        """The value of `lrEndFactor`, or its default."""
        return self.getOrDefault(self.lrEndFactor)

    def setLrDecayRate(self, value: float) -> Self:
        """Sets `lrDecayRate`."""
        return self._set(lrDecayRate=value)

    def getLrDecayRate(self) -> float:
        """The value of `lrDecayRate`, or its default."""
        return self.getOrDefault(self.lrDecayRate)

    def setLrDecayEpochs(self, value: int) -> Self:
        """Sets `lrDecayEpochs`."""
        return self._set(lrDecayEpochs=value)

    def getLrDecayEpochs(self) -> int:
        """The value of `lrDecayEpochs`, or its default."""
        return self.getOrDefault(self.lrDecayEpochs)


class HasEarlyStopping(CheckedParams):
    """Which epoch was the best, whether training ends after it, and whose weights are kept."""

    monitor: Param[str] = Param(
        Params._dummy(),
        "monitor",
        "Name of the loss or metric in the history that says which epoch was the best, such as val_loss "
        "or val_accuracy. When not set, val_loss where there are validation rows, else loss.",
        text,
    )

    monitorMode: Param[str] = Param(
        Params._dummy(),
        "monitorMode",
        "Whether the smaller (min) or the larger (max) value of monitor is better. auto goes by its "
        "name, for the loss and the named metrics.",
        one_of("auto", "min", "max"),
    )

    monitorMinDelta: Param[float] = Param(
        Params._dummy(),
        "monitorMinDelta",
        "By how much more than this an epoch must be better than the best one so far to become the best.",
        Number(0.0),
    )

    earlyStoppingPatience: Param[int] = Param(
        Params._dummy(),
        "earlyStoppingPatience",
        "Number of epochs in a row without a new best one after which training stops. When not set, it "
        "takes all epochs.",
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
        self._setDefault(monitorMode="auto", monitorMinDelta=0.0, restoreBestWeights=False)

    def setMonitor(self, value: str) -> Self:
        """Sets `monitor`."""
        return self._set(monitor=value)

    def getMonitor(self) -> str | None:
        """The value of `monitor`, None when it is not set."""
        return self._value("monitor")

    def setMonitorMode(self, value: str) -> Self:
        """Sets `monitorMode`."""
        return self._set(monitorMode=value)

    def getMonitorMode(self) -> str:
        """The value of `monitorMode`, or its default."""
        return self.getOrDefault(self.monitorMode)

    def setMonitorMinDelta(self, value: float) -> Self:
        """Sets `monitorMinDelta`."""
        return self._set(monitorMinDelta=value)

    def getMonitorMinDelta(self) -> float:
        """The value of `monitorMinDelta`, or its default."""
        return self.getOrDefault(self.monitorMinDelta)

    def setEarlyStoppingPatience(self, value: int) -> Self:
        """Sets `earlyStoppingPatience`."""
        return self._set(earlyStoppingPatience=value)

    def getEarlyStoppingPatience(self) -> int | None:
        """The value of `earlyStoppingPatience`, None when it is not set."""
        return self._value("earlyStoppingPatience")

    def setRestoreBestWeights(self, value: bool) -> Self:
        """Sets `restoreBestWeights`."""
        return self._set(restoreBestWeights=value)

    def getRestoreBestWeights(self) -> bool:
        """The value of `restoreBestWeights`, or its default."""
        return self.getOrDefault(self.restoreBestWeights)
