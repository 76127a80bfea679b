"""The native half of Flambeau: the extension module built from `native/python`."""

from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from typing import Any, Literal, overload

__version__: str

class Batch:
    """One rank's rows of one global batch; tensors are DLPack capsules, each to be consumed once."""

    @overload
    def __getitem__(self, name: Literal["index", "num_rows"]) -> int: ...
    @overload
    def __getitem__(self, name: Literal["inputs", "labels"]) -> list[Any]: ...
    @overload
    def __getitem__(self, name: Literal["weight"]) -> Any | None: ...
    @overload
    def __getitem__(self, name: Literal["row_ids"]) -> list[int]: ...

class BatchReader:
    """The batches of training rows that one rank of a job sees.

    Reads the footers of the job's training shards when made. Iterating gives the batches to the end of the
    epoch that `start` chose; an iteration waits at most the job's `collectiveTimeout` for rows.
    """

    def __new__(cls, job_json: str, rank: int, world_size: int) -> BatchReader: ...
    @property
    def batches_per_epoch(self) -> int: ...
    def start(self, epoch: int, batch: int = 0) -> None:
        """Goes to a batch of an epoch, both counted from 0."""

    def __iter__(self) -> Iterator[Batch]: ...
    def __next__(self) -> Batch: ...

class GradientSink:
    """Where gradients go on their way to the other ranks. The training loop gives it to `attach`."""

    def buckets(self) -> list[Any]:
        """The buckets as DLPack capsules of flat tensors, which keep the sink alive."""

    def view(self, index: int) -> tuple[int, int]:
        """Where the gradient of parameter `index` lies: bucket and element in it."""

    def mark_ready(self, index: int) -> None:
        """Tells that the gradient of parameter `index` lies in its view. May wait for ranks, detached."""

    def mark_all_ready(self, indices: list[int]) -> None:
        """The same for several parameters at once."""

class Store:
    """Whole files under paths and URIs (local, `/Volumes`, `dbfs:`, `s3`, `s3a`, `abfss`, `gs`).

    `options` are `object_store`'s, such as credentials and endpoints. Raises `flambeau.errors.StoreError`.
    """

    def __new__(cls, options: dict[str, str] | None = None) -> Store: ...
    def get(self, uri: str) -> bytes: ...
    def get_range(self, uri: str, start: int, end: int) -> bytes: ...
    def put(self, uri: str, data: bytes) -> None: ...
    def put_file(self, uri: str, local: str | PathLike[str]) -> None: ...
    def get_to_file(self, uri: str, local: str | PathLike[str]) -> None: ...
    def size(self, uri: str) -> int | None: ...
    def list(self, prefix: str) -> list[str]: ...
    def delete(self, uri: str) -> None: ...
    def delete_prefix(self, prefix: str) -> None: ...

class TcpRendezvous:
    """A rendezvous for launchers without Spark.

    Rank 0 serves `address` ("host:port"); the others connect to it and prove that they know `secret`, at
    least 16 bytes, and are of the same `attempt`. Waits for at most `timeout` seconds.
    """

    def __new__(
        cls,
        address: str,
        rank: int,
        world_size: int,
        secret: bytes,
        timeout: float = 60.0,
        attempt: str = "",
    ) -> TcpRendezvous: ...
    def all_gather(self, payload: bytes) -> list[bytes]:
        """Gives every rank the payloads of all ranks, in rank order. All ranks call it equally often."""

def check_script_file(name: str, data: bytes, sizes: dict[str, int]) -> None:
    """Refuses a file of a TorchScript archive that has code for the load itself to run, or storages that are
    larger than what the archive holds of them; `sizes` has the bytes of each of its files by its name in
    lower case.

    Raises `flambeau.errors.DataError`.
    """

def impure_operators(names: list[str]) -> list[str]:
    """Those of the operators, such as `aten::from_file`, that may do more than compute."""

def job_schema() -> str:
    """The JSON Schema of a training job."""

def nccl_meeting(
    directories: list[str],
    rank: int,
    world_size: int,
    all_gather: Callable[[bytes], list[bytes]],
    secret: bytes,
    bind_address: str,
) -> tuple[str, bytes]:
    """Opens NCCL on every rank and compares the versions.

    Returns the version, and the bytes of the unique id that rank 0 has made; both are the same on all ranks.
    Needs no GPU. All ranks call it. The file that the environment variable `FLAMBEAU_NCCL` names is opened;
    where that is not set, `libnccl.so.2` in the first of `directories` that has one; else the system's. The
    other arguments are as for `train`.

    Raises `flambeau.errors.CollectiveError`, with what each rank has where they do not have the same.
    """

def keep_freed_batches() -> None:
    """Has this process keep the memory that one batch has freed for the next, rather than hand it back."""

def supervise(work_dir: str, question: str, store_options: dict[str, str]) -> str:
    """Asks the supervisor (`native/supervisor`) a question about a work directory, and returns its answer;
    both are JSON.

    Raises `flambeau.errors.StoreError`, and `ParamError` for what the user asked for that does not go with
    what is there.
    """

def train(
    job_json: str,
    rank: int,
    world_size: int,
    all_gather: Callable[[bytes], list[bytes]],
    secret: bytes,
    bind_address: str,
    adapter: object,
    callbacks: object | None = None,
    transport: str = "auto",
    gpu_addresses: list[str] | None = None,
) -> str:
    """Trains one rank of a job to its end and returns the result as JSON.

    All ranks call it with the same job. `all_gather` is called once, with bytes, and returns every rank's
    bytes in rank order. `secret` proves that ranks belong together; `bind_address` is the IP address that
    the other ranks reach this one at. `adapter` is a `flambeau._module.adapter.ModuleModel`. `callbacks`, a
    `flambeau._rank.callbacks.RankCallbacks`, is told what the rank comes to, unless it is None. `transport`
    is "auto", "sharedMemory" or "tcp". `gpu_addresses` are those that the cluster has assigned to the rank,
    None where it assigns none. Waits at most the job's `collectiveTimeout` in any one operation, and not at
    all once a signal handler raises.

    Raises `flambeau.errors.RankFailure`, whose cause is the exception itself.
    """

def validate_job(
    job_json: str,
    training_metrics: Sequence[str] | None = None,
    validation_metrics: Sequence[str] | None = None,
    parameters: Sequence[str] | None = None,
) -> None:
    """Checks a training job, with the names of the metrics that training rows have and of those that
    validation rows have, where they are known and it does not hold them, and those of the parameters that
    are trained.

    Raises `flambeau.errors.ParamError` (a ValueError) naming param and value.
    """
