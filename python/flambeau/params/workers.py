"""Params of what computes: workers, devices and the runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pyspark.ml.param import Param, Params
from pyspark.ml.param.shared import (
    HasCheckpointInterval,
)

from flambeau.params.converters import (
    Integer,
    Number,
    boolean,
    one_of,
    text,
)
from flambeau.params.objects import CheckedParams

if TYPE_CHECKING:
    pass


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

    keepCheckpoints: Param[int] = Param(
        Params._dummy(),
        "keepCheckpoints",
        "Number of checkpoints that a fit which succeeds leaves in the work directory: the newest ones, with "
        "the weights as a file of their own. 0 leaves none.",
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
        "How many times training is started again after a worker was lost. An error of the module, "
        "bad data or a diverged loss never start it again.",
        Integer(0, 1000),
    )

    collectiveTimeout: Param[float] = Param(
        Params._dummy(),
        "collectiveTimeout",
        "Seconds that a worker waits for another in one operation before it gives up. A dead worker "
        "is noticed in seconds; this is for one that is slow.",
        Number(0.0, 31_536_000.0, open_below=True),
    )

    heartbeatTimeout: Param[float] = Param(
        Params._dummy(),
        "heartbeatTimeout",
        "Seconds without a sign of life after which a worker counts as lost, though its connections "
        "stand: one that is stopped, or whose network is gone. A virtual machine may pause for some "
        "seconds and is not lost.",
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
            keepCheckpoints=0,
            maxRestarts=3,
            collectiveTimeout=600.0,
            heartbeatTimeout=30.0,
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

    def setKeepCheckpoints(self, value: int) -> Self:
        """Sets `keepCheckpoints`."""
        return self._set(keepCheckpoints=value)

    def getKeepCheckpoints(self) -> int:
        """The value of `keepCheckpoints`, or its default."""
        return self.getOrDefault(self.keepCheckpoints)

    def setRunId(self, value: str) -> Self:
        """Sets `runId`."""
        return self._set(runId=value)

    def getRunId(self) -> str | None:
        """The value of `runId`, None when it is not set."""
        return self._value("runId")

    def setMaxRestarts(self, value: int) -> Self:
        """Sets `maxRestarts`."""
        return self._set(maxRestarts=value)

    def getMaxRestarts(self) -> int:
        """The value of `maxRestarts`, or its default."""
        return self.getOrDefault(self.maxRestarts)

    def setCollectiveTimeout(self, value: float) -> Self:
        """Sets `collectiveTimeout`."""
        return self._set(collectiveTimeout=value)

    def getCollectiveTimeout(self) -> float:
        """The value of `collectiveTimeout`, or its default."""
        return self.getOrDefault(self.collectiveTimeout)

    def setHeartbeatTimeout(self, value: float) -> Self:
        """Sets `heartbeatTimeout`."""
        return self._set(heartbeatTimeout=value)

    def getHeartbeatTimeout(self) -> float:
        """The value of `heartbeatTimeout`, or its default."""
        return self.getOrDefault(self.heartbeatTimeout)

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
