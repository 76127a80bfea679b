"""A run of MLflow's, and what is written to it."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from posixpath import normpath
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from flambeau._reason import first_line

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

log = logging.getLogger("flambeau")

_END_SECONDS = 30.0
"""How long a fit that has ended waits for what it told to be written."""
_NUM_KEPT = 100_000
"""How many metrics are kept while they cannot be written."""
_NOT_IN_NAMES = re.compile(r"[^\w\-./ :]")


class Run:
    """A run of MLflow's that a fit is logged into, and the thread that writes to it, so that a server that
    is slow or gone holds up nobody. What could not be written is tried again with what comes next.

    `create` makes the run where `id` is none; `params` are those that it gets.
    """

    def __init__(
        self, client: MlflowClient, id: str | None, create: Callable[[], str], params: Mapping[str, str]
    ) -> None:
        self.id = id
        self.last_step = 0
        self.num_samples: Counter[int] = Counter()
        """How often each rank has told what it uses."""
        self._client = client
        self._is_own = id is None
        self._create = create
        self._params = dict(params)
        self._tags: dict[str, str] = {}
        self._lock = threading.Lock()
        self._metrics: deque[Metric] = deque(maxlen=_NUM_KEPT)
        self._status: str | None = None
        self._has_warned = False
        self._asked: SimpleQueue[Future[None] | None] = SimpleQueue()
        threading.Thread(target=self._write_what_comes, name="flambeau-mlflow", daemon=True).start()

    def add_metrics(self, values: Mapping[str, float | None], step: int) -> None:
        """Logs metrics at a step; None stands for what is not a finite number."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        for name, value in values.items():
            number = float("nan") if value is None else float(value)
            self._metrics.append(Metric(_allowed(name), number, now, step))
        self._asked.put(Future())

    def add_tags(self, tags: Mapping[str, str]) -> None:
        """Sets tags."""
        with self._lock:
            self._tags = {**self._tags, **tags}
        self._asked.put(Future())

    def flush(self) -> bool:
        """Waits until all is written, up to half a minute; whether it is."""
        written: Future[None] = Future()
        self._asked.put(written)
        try:
            written.result(_END_SECONDS)
        except TimeoutError:
            self._warn("it does not answer")
            return False
        except Exception:
            return False
        return True

    def end(self, status: str) -> None:
        """Ends the run, where it is the fit's own, and the thread."""
        self._status = status if self._is_own else None
        self.flush()
        self._asked.put(None)

    def _write_what_comes(self) -> None:
        is_over = False
        while not is_over:
            asked = [self._asked.get()]
            while not self._asked.empty():
                asked.append(self._asked.get())
            is_over = asked[-1] is None
            error: Exception | None = None
            try:
                self._write()
            except Exception as raised:
                error = raised
                self._warn(first_line(error))
            for one in filter(None, asked):
                one.set_exception(error) if error else one.set_result(None)

    def _write(self) -> None:
        from mlflow.entities import Param, RunTag
        from mlflow.utils.validation import MAX_METRICS_PER_BATCH, MAX_PARAMS_TAGS_PER_BATCH

        if self.id is None:
            self.id = self._create()
        if self._params:
            # A param's value never changes in MLflow, and the run may have one of that name.
            known = {} if self._is_own else self._client.get_run(self.id).data.params
            new = [Param(name, value) for name, value in self._params.items() if name not in known]
            for start in range(0, len(new), MAX_PARAMS_TAGS_PER_BATCH):
                self._send(params=new[start : start + MAX_PARAMS_TAGS_PER_BATCH])
            self._params = {}
        while tags := self._tags:
            self._send(tags=[RunTag(name, value) for name, value in tags.items()])
            with self._lock:
                # What was set meanwhile is sent next.
                self._tags = dict(self._tags.items() - tags.items())
        while self._metrics:
            batch = [self._metrics.popleft() for _ in range(min(len(self._metrics), MAX_METRICS_PER_BATCH))]
            try:
                self._send(metrics=batch)
            except Exception:
                self._metrics.extendleft(reversed(batch))
                raise
        if self._status is not None:
            self._client.set_terminated(self.id, self._status)
            self._status = None

    def _send(self, **batch: Any) -> None:
        """Logs a batch; one that MLflow refuses as such is told of and let go, since it never takes it."""
        from mlflow.exceptions import MlflowException

        try:
            self._client.log_batch(self.id, **batch)
        except MlflowException as error:
            if error.get_http_status_code() != 400:
                raise
            self._warn(first_line(error))

    def _warn(self, why: str) -> None:
        level = logging.DEBUG if self._has_warned else logging.WARNING
        self._has_warned = True
        log.log(level, "the fit goes on, but not all of it is written to MLflow: %s", why)


def _allowed(name: str) -> str:
    """A metric's name as MLflow takes it: a path in its shortest form, of at most 250 characters."""
    return normpath(_NOT_IN_NAMES.sub("_", name).strip("/"))[:250]
