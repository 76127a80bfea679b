"""What the driver tells of a fit: its progress to who looks on, and its events to the driver's callbacks."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from flambeau._callbacks import CallbackList
from flambeau._reason import first_line
from flambeau._spark import session
from flambeau._spark.fit.display import Display, display_of
from flambeau._spark.fit.events import STORE_ERRORS, EventFiles, UsageFiles, newest
from flambeau._spark.session import Flag
from flambeau._spark.site import Site
from flambeau.callbacks import Callback, Context
from flambeau.errors import CallbackError, CancelledError, WorkerLost

log = logging.getLogger("flambeau")

_POLL_SECONDS = 0.5
# NFS may hide a new file for as long as it keeps a directory's attributes, 30 s to 60 s.
_END_SECONDS = 60.0
_told_that_unseen = threading.Event()

T = TypeVar("T")


class ListenerBus:
    """One fit, through all its attempts, as the driver's callbacks and its display see it.

    Live hooks run on a thread that follows the attempt's event files, never on two at once; those for the
    fit's beginning and end in the thread that fits. An exception of a live hook is kept: nothing more is
    told, and `is_set` says from then on that the fit is to be cancelled, unless the training has ended well.
    """

    def __init__(self, callbacks: Sequence[Callback], context: Context, display: Display | None) -> None:
        self._hooks = CallbackList(callbacks, context)
        self._context = context
        self._display = display
        self._site: Site | None = None
        self._stop_asked = threading.Event()
        self._has_begun = False
        self._is_over = False
        self._error: BaseException | None = None
        self._cancels = False
        """Whether a hook has failed before the training's end."""
        self._ended_well = threading.Event()
        context._stop = self._ask_for_stop

    @classmethod
    def of(cls, callbacks: Sequence[Callback], estimator: Any, dataset: Any) -> ListenerBus:
        """That of a fit of an estimator, for the driver's callbacks."""
        context = Context(
            epochs=estimator.getEpochs(),
            world_size=estimator.getNumWorkers(),
            estimator=estimator,
            dataset=dataset,
        )
        return cls(callbacks, context, display_of(estimator.getVerbose()))

    def around(self, fit: Callable[[], T]) -> T:
        """Runs a fit, and the hooks at its beginning and its end. Raises what a hook raised where that ended
        the fit, and CallbackError where a hook failed after a training that ended well.
        """
        try:
            self._hooks.call("on_fit_begin")
            self._context.model = model = fit()
            self._end(model)
            return model
        except BaseException as raised:
            # The fit was cancelled because of it.
            error = self._error if self._error and isinstance(raised, CancelledError) else raised
            self._tell_of(error)
            if error is raised:
                raise
            raise error from error.__cause__
        finally:
            self._is_over = True
            if self._display is not None:
                self._display.close()

    @property
    def gives_up(self) -> bool:
        """Whether a hook has ended the fit and wants nothing of it kept."""
        return self._error is not None and self._context._gives_up

    @property
    def usage_seconds(self) -> float | None:
        """After how many seconds a rank is to tell again what it uses, None for never."""
        return self._context._usage_seconds

    def is_set(self) -> bool:
        """Whether the fit is to be cancelled: a hook has failed while the training ran."""
        return self._cancels and not self._ended_well.is_set()

    def interruption(self, other: Flag | None) -> Flag | None:
        """What cancels the fit: a hook that failed, or `other`."""
        return _Either(self, other) if self._hooks.callbacks else other

    def advise(self, text: str) -> None:
        """Shows what to change about the training, where somebody looks on."""
        self._shown(lambda display: display.advise(text))

    def stop_file(self, site: Site, id: str) -> str | None:
        """The file that an attempt is to look for, which the driver's callbacks may have written; None where
        there is none.
        """
        if not (site.visible and self._hooks.callbacks):
            return None
        return site.work.path("attempts", id, "stop")

    @contextmanager
    def attempt(self, site: Site, id: str) -> Iterator[threading.Event]:
        """Follows an attempt while the block trains it, which sets the event once all ranks have ended well;
        at its end all that it told has been told on. Raises what a hook raised, but for an attempt that ended
        well: that is kept until the model is made, unless the hook wants none.
        """
        self._site = site
        self._warn_of_stop()
        if site.visible:
            with self._following(site, id):
                yield self._ended_well
            return
        if self._display is not None and not _told_that_unseen.is_set():
            _told_that_unseen.set()
            log.warning("no progress is shown, since %s is not seen from here", site.work.uri)
        self._display = None
        try:
            yield self._ended_well
        except WorkerLost:
            self._tell_late(site, id)
            raise
        self._tell_late(site, id)

    @contextmanager
    def _following(self, site: Site, id: str) -> Iterator[None]:
        if self._display is None and not self._hooks.callbacks:
            yield
            return
        ended, files = threading.Event(), EventFiles(site.work, id)
        seconds = self.usage_seconds
        usage = None if seconds is None else UsageFiles(site.work, id, seconds)
        stop_file = self.stop_file(site, id)

        def follow() -> None:
            is_over = is_written = False
            while not is_over:
                is_written = is_written or self._pass_on_stop(site, stop_file)
                is_over = ended.wait(_POLL_SECONDS)
                if not is_over:
                    self._tell_new(files)
                    self._tell_usage(usage)
            self._tell_last(files)

        thread = threading.Thread(
            target=session.inheriting(site.spark, follow), name="flambeau-listener-bus", daemon=True
        )
        thread.start()
        try:
            yield
        except WorkerLost:
            raise
        except BaseException:
            # The fit is given up, and nobody waits for what came in.
            self._is_over = True
            raise
        finally:
            ended.set()
            # A hook that still runs takes as long as it takes; what is read has the store's deadlines.
            thread.join()
            self._raise_or_keep()

    def _tell_new(self, files: EventFiles) -> str | None:
        """Tells what has come in, and returns what kept it from reading all of that."""
        events: list[dict[str, Any]] = []
        reason = None
        try:
            while not self._is_done and (more := files.read()):
                events += more
        except STORE_ERRORS as error:
            reason = first_line(error)
            log.debug("the training's events could not be read: %s", reason)
        self._tell(newest(events))
        return reason

    def _tell_usage(self, files: UsageFiles | None) -> None:
        """Tells what has come in of what ranks use. What cannot be read is let go: more comes."""
        try:
            samples = [] if files is None else files.read()
        except STORE_ERRORS as error:
            log.debug("what the workers use could not be read: %s", first_line(error))
            return
        self._tell(samples)

    def _tell_last(self, files: EventFiles) -> None:
        """Tells what came in before an attempt's end. Of one that ended well it looks for the end for a
        while: not every file system shows a file at once.
        """
        is_awaited = self._ended_well.is_set() and bool(self._hooks.callbacks)
        deadline = time.monotonic() + _END_SECONDS
        reason = self._tell_new(files)
        while is_awaited and not (files.has_end or self._is_done) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            reason = self._tell_new(files)
        if not self._is_done and (reason or (is_awaited and not files.has_end)):
            self._warn(reason)

    def _warn(self, reason: str | None) -> None:
        """Warns that events are missing."""
        if self._hooks.callbacks:
            log.warning(
                "callbacks on the driver are not told of all of the training, whose events could not be "
                "read: %s",
                reason or "the last ones were not found",
            )

    def _tell_late(self, site: Site, id: str) -> None:
        """Tells what an attempt has told where only workers see its files."""
        if not self._hooks.callbacks:
            return
        log.warning(
            "callbacks on the driver are told of the training only now that it has ended: %s is not seen "
            "from here; give a workDir that is, or call them in workers, with where='rank0'",
            site.work.uri,
        )
        self._context._is_late = True
        try:
            events, reason = site.where_seen(lambda work: EventFiles(work, id).read_all())
        except Exception as error:
            self._warn(first_line(error))
            return
        if reason or (self._ended_well.is_set() and not any(event["kind"] == "end" for event in events)):
            self._warn(reason)
        self._tell(events)
        self._raise_or_keep()

    def _raise_or_keep(self) -> None:
        """Raises what a hook raised, unless the training ended well and its model is wanted: then `around`
        does, with the model.
        """
        if self._error is None:
            return
        if not self._ended_well.is_set() or self.gives_up:
            raise self._error
        # Where the fit was cancelled because of it just before that.
        session.pause(0)

    def _tell(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Tells events on, up to what fails; raises nothing."""
        for event in events:
            if self._is_done:
                return
            self._show(event)
            try:
                self._call_hooks(event)
            except BaseException as error:
                self._error = error
                self._cancels = event["kind"] != "end"

    @property
    def _is_done(self) -> bool:
        """Whether nothing more is to be told."""
        return self._is_over or self._error is not None

    def _show(self, event: Mapping[str, Any]) -> None:
        if event["kind"] == "stall":
            # Where all is told after the end, nobody waits any more.
            if not self._context._is_late:
                log.warning("%s", event["message"])
            return
        self._shown(lambda display: display.show(event))

    def _shown(self, show: Callable[[Display], None]) -> None:
        """Has the display show something, if there is one. One that fails, such as a closed standard output,
        is given up, and the fit goes on.
        """
        try:
            if self._display is not None:
                show(self._display)
        except Exception as error:
            log.debug("progress could not be shown: %s", error)
            self._display = None

    def _call_hooks(self, event: Mapping[str, Any]) -> None:
        if not self._hooks.callbacks:
            return
        if event["kind"] == "start":
            self._hooks.begin(event)
            if self._has_begun:
                return
            self._has_begun = True
        self._hooks.tell(event)
        if event["kind"] == "progress":
            self._context.epoch, self._context.step = event["epoch"], event["step"]
            self._context.metrics = {"loss": event["stepLoss"]}
            self._context.learning_rate = event["learningRate"]
            self._context.gradient_norm = event["gradientNorm"]
            self._hooks.call("on_step_end")

    def _end(self, model: Any) -> None:
        error = self._error
        if error is None:
            try:
                self._hooks.call("on_fit_end")
            except Exception as raised:
                error = raised
        if error is not None and not isinstance(error, Exception):
            raise error  # an interrupt
        if error is not None:
            name = " ".join([type(error).__name__, *getattr(error, "__notes__", [])[-1:]])
            raise CallbackError(
                f"{name}: {error}; the model was made all the same: it is the attribute model of this error",
                model,
            ) from error

    def _tell_of(self, error: BaseException) -> None:
        """Calls `on_exception` of every callback; what one raises then is told and no more."""
        self._context.error = error
        for callback in self._hooks.callbacks:
            try:
                self._hooks.call_one(callback, "on_exception")
            except Exception:
                log.exception("on_exception of a callback failed")

    def _ask_for_stop(self) -> None:
        if self._is_over:
            return
        self._stop_asked.set()
        self._warn_of_stop()

    def _warn_of_stop(self) -> None:
        """Says where a stop that was asked for does not reach the workers."""
        if self._stop_asked.is_set() and self._site is not None and not self._site.visible:
            log.warning(
                "a callback on the driver asked for a stop, which cannot be passed on: %s is not seen from "
                "here; give a workDir that is, or stop from workers, with where='rank0'",
                self._site.work.uri,
            )

    def _pass_on_stop(self, site: Site, stop_file: str | None) -> bool:
        """Has the workers stop where that was asked for; whether they have been told."""
        if stop_file is None or not self._stop_asked.is_set():
            return False
        try:
            site.work.store().put(stop_file, b"")
        except STORE_ERRORS as error:
            log.warning("the stop that was asked for could not be written yet: %s", first_line(error))
            return False
        return True


class _Either:
    """Is set where one of two flags is."""

    def __init__(self, one: Flag, other: Flag | None) -> None:
        self._one, self._other = one, other

    def is_set(self) -> bool:
        return self._one.is_set() or (self._other is not None and self._other.is_set())
