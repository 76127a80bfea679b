"""The nn.Module as the model that the native worker trains.

`ModuleModel` is called from Rust by the training loop, on one thread, but for the gradient hooks, which
autograd may call on threads of its own. Batches come as DLPack capsules over pooled native buffers, which a
tensor gives back when it dies. Gradients live in flat buckets of the training loop's: `.grad` is None before
the first backward of a step; a hook copies the gradient that autograd made into the parameter's view of its
bucket and makes `.grad` that view, in which later micro-batches accumulate.

On a GPU the buckets are tensors of torch's. What happens in a step is queued on one stream, torch's present
one, and the host runs ahead of it: it waits for the loss, which is there before backward, and for nothing
else.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, RMSprop
from torch.utils.dlpack import from_dlpack
from torch.utils.hooks import RemovableHandle

from flambeau._module import devices, gathered, generators, lightning, metrics, optimizers
from flambeau._module.assembly import TWO_SCHEDULES, objective_of, optimizer_and_schedules
from flambeau._module.checks import check_module, is_dense, trainable
from flambeau._module.compiled import CompiledModule
from flambeau._module.device_gradients import DeviceGradients
from flambeau._module.devices import BatchCopier, Readback, TensorBatch
from flambeau._module.layout import Layout
from flambeau._module.position import Position
from flambeau._module.precision import autocast
from flambeau._module.schedules import Schedules
from flambeau._module.steps import TRAINING, VALIDATION, LoggedMean, Steps, logged_names
from flambeau._module.uncompiled import uncompiled
from flambeau._saved.weights import save_module
from flambeau.errors import ParamError

if TYPE_CHECKING:
    from flambeau._module.preprocessor import Ahead
    from flambeau._native import GradientSink

_DTYPES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int64: "int64",
}
"""The dtypes that collectives know; other tensors travel as raw bytes."""

_SLOTS = {"amsgrad": "max_exp_avg_sq", "centered": "grad_avg", "momentum": "momentum_buffer"}
"""What options of torch.optim's Adam, AdamW, RMSprop and SGD add to a parameter's state: zeros at first."""

_SharedTensor = tuple[str, int, int, str | None, int]
"""A tensor's name, address, number of elements, dtype or None, and bytes."""


class ModuleModel:
    """An nn.Module with its loss, optimizer and metrics, as the native worker sees it.

    `program` holds `model`, `loss`, `optimizer` and `metrics` as they came out of one pickle, so that an
    optimizer instance holds the module's own parameters. `layout` tells what a batch is made of. `precision`
    is that of forward and loss: "float32" leaves the module as it is, "bf16" and "fp16" autocast. `compiles`
    has torch.compile make what is called in training. Raises `ParamError` for what can't be trained, before
    anything is read.
    """

    def __init__(
        self,
        program: Mapping[str, Any],
        layout: Layout,
        learning_rate: float | None = None,
        precision: str = "float32",
        compiles: bool = False,
    ) -> None:
        module = program["model"]
        check_module(module)
        self.module: nn.Module = module
        self.position = Position()
        self._compiled = CompiledModule(module) if compiles else None
        self._forward, self.objective = objective_of(program, layout, self.position, self._compiled)
        self.optimizer, schedules = optimizer_and_schedules(
            program, learning_rate, layout.validates, self.position
        )
        self._schedules = Schedules(schedules)
        # A scheduler puts a counter round the optimizer's steps.
        self._step = (
            self.optimizer.step if schedules else optimizers.step(program["optimizer"], self.optimizer)
        )
        self._given_metrics = program.get("metrics")
        self.metrics, self.gathered = self._make_metrics(layout)
        self._schedules.check(self._figures(layout.validates))
        self._is_read = self.objective.tells or not (self.metrics or self.gathered)
        """Whether it is known how the metrics read the outputs."""
        self._names, self._parameters = trainable(module)
        self._views: list[Tensor] = []
        self._hooks: list[RemovableHandle] = []
        self._sink: GradientSink | None = None
        self._rate_factor = 1.0
        """What the optimizer's learning rates are of those that it was made with."""
        self._is_whole = False
        """Whether every `.grad` is its parameter's view."""
        self._last_rate: Any = None
        """The learning rate of the last step that was taken."""
        self._precision = precision
        self._autocast = autocast(precision, torch.device("cpu"))
        self._device: torch.device | None = None
        """The GPU, None on the CPU."""
        self._stream: torch.cuda.Stream | None = None
        """The GPU's stream whose work the reduction waits for."""
        self._device_gradients: DeviceGradients | None = None
        self._copier: BatchCopier | None = None
        self.ahead: Ahead | None = None
        """What makes the module's inputs of columns, where the rows are not tensors yet."""
        self._host_copies: list[tuple[Tensor, Tensor]] = []
        """What `tensors` gave last, of tensors on a GPU: each with its copy in main memory."""
        module.train()

    # The device.

    def cuda_obstacle(self) -> str | None:
        """Why the module can't be trained on a GPU here, None where it can."""
        if self.ahead is not None:
            return "preprocess makes tensors for the CPU alone"
        return devices.cuda_obstacle()

    def nccl_directories(self) -> list[str]:
        """Where the NCCL that came with torch may lie."""
        return devices.nccl_directories()

    def to_device(self, index: int) -> int:
        """Moves everything to `cuda:index`, and returns the `cudaStream_t` that work is queued on from then
        on.
        """
        torch.cuda.set_device(index)
        self.occupy(torch.device("cuda", index))
        self._stream = torch.cuda.current_stream()
        return self._stream.cuda_stream

    def occupy(self, device: torch.device) -> None:
        """Moves everything to a device."""
        # In place: the optimizer and the hooks know the parameters as the objects that they are.
        self.module.to(device)
        self.objective.to(device)
        self._move_metrics(device)
        if self.optimizer.state:
            with uncompiled():
                self.optimizer.load_state_dict(self.optimizer.state_dict())
        self._autocast = autocast(self._precision, device)
        self._device, self._copier = device, BatchCopier(device)

    def allocate_gradients(self, wanted: Sequence[tuple[str, int]], halves: str | None) -> DeviceGradients:
        """Makes what gradients are reduced in on the device, in place of what it made last."""
        self._device_gradients = DeviceGradients(wanted, halves, self._device, self._stream)
        return self._device_gradients

    # What the worker asks at the start.

    def parameters(self) -> list[tuple[str, int, int, str]]:
        """The trainable parameters as (name, number of elements, first dimension, dtype), tied ones once, in
        registration order.
        """
        return [
            (name, parameter.numel(), *(parameter.shape[:1] or (1,)), _DTYPES[parameter.dtype])
            for name, parameter in zip(self._names, self._parameters, strict=True)
        ]

    def num_metric_sums(self) -> int:
        """How many float64 sums the metrics add to those of the loss."""
        return sum(metric.size for metric in self.metrics)

    def metric_names(self) -> tuple[list[str], list[str]]:
        """The names of the metrics of training rows, and of those of validation rows."""
        training, validation = (
            [metric.name for metric in self.metrics if _is_of(metric, part)] for part in (True, False)
        )
        return training, [*validation, *(metric.name for metric in self.gathered)]

    def _figures(self, validates: bool) -> set[str]:
        """What a schedule may monitor of an epoch."""
        training, validation = self.metric_names()
        of_validation = {*validation, "val_loss", *(f"val_{name}" for name in validation)}
        return {"loss", *training, *(of_validation if validates else ())}

    def attach(self, sink: GradientSink) -> None:
        """Makes each parameter's view of the buckets; called again when these are laid out anew."""
        for parameter in self._parameters:
            parameter.grad = None
        self._views.clear()
        if self._device_gradients is None:
            buckets = [from_dlpack(capsule) for capsule in sink.buckets()]
        else:
            buckets = self._device_gradients.buckets
        for index, parameter in enumerate(self._parameters):
            bucket, offset = sink.view(index)
            flat = buckets[bucket][offset : offset + parameter.numel()]
            # A dense parameter's gradient has its strides (channels_last, say), so that copies and optimizers
            # stay flat.
            self._views.append(flat.as_strided(parameter.shape, parameter.stride()))
        self._sink = sink
        while self._hooks:
            self._hooks.pop().remove()
        if len(buckets) > 1:
            for index, parameter in enumerate(self._parameters):
                hook = self._hook(index, self._views[index], sink.mark_ready)
                self._hooks.append(parameter.register_post_accumulate_grad_hook(hook))

    def tensors(self, only_buffers: bool = False) -> list[_SharedTensor]:
        """Parameters and buffers, or the latter alone: what replicas share.

        The pointers are to main memory, to copies of what lies on a device, and hold until the module next
        runs. A tensor with a dtype that collectives don't know has None.
        """
        named = [] if only_buffers else list(self.module.named_parameters())
        self._host_copies = []
        shared = []
        for name, tensor in (*named, *self.module.named_buffers()):
            tensor = tensor.detach()
            if tensor.numel() == 0:
                continue
            copy = None
            if self._device is not None:
                copy = tensor.to("cpu")
                self._host_copies.append((tensor, copy))
            shared.append(_shared(name, tensor, copy))
        return shared

    def trained_tensors(self) -> list[_SharedTensor]:
        """The parameters that are trained, as `tensors` tells them, of a module in main memory. This is asked
        after each step, and takes a fifth of the time.
        """
        return [_shared(*named) for named in zip(self._names, self._parameters, strict=True)]

    def optimizer_tensors(self) -> list[_SharedTensor]:
        """What the optimizer keeps of each trained parameter in floating types, as `tensors` tells it."""
        return [
            _shared(f"{name} ({kind})", value)
            for name, parameter in zip(self._names, self._parameters, strict=True)
            for kind, value in sorted(
                self.optimizer.state.get(parameter, {}).items(), key=lambda one: str(one[0])
            )
            if isinstance(value, Tensor) and value.is_floating_point() and value.numel()
        ]

    def take_tensors(self) -> None:
        """Takes over what `tensors` gave last, on a device, after others have written there."""
        with torch.no_grad():
            for tensor, copy in self._host_copies:
                tensor.copy_(copy)
        self._host_copies = []

    @property
    def batches_ahead(self) -> int:
        """How many batches are prepared ahead of the one that is computed on."""
        return 0 if self.ahead is None else self.ahead.num_batches

    def set_num_threads(self, num_threads: int) -> None:
        """Sets the number of threads that torch computes with; called once the ranks of this host are
        known.
        """
        torch.set_num_threads(num_threads)

    def seed(self, seed: int, step: int, rank: int) -> None:
        """Seeds Python's, numpy's and torch's generators from (seed, step, rank) alone."""
        generators.seed(seed, step, rank)

    def warnings(self) -> list[str]:
        """What the user should know although nothing failed."""
        compiled = [self._compiled.warning] if self._compiled and self._compiled.warning else []
        logged = self.objective.warnings() if isinstance(self.objective, Steps) else []
        unused = lightning.warnings_of(self.module) if lightning.base_of(self.module) else []
        return compiled + logged + unused

    # What happens in a step.

    def _hook(self, index: int, view: Tensor, mark_ready: Callable[[int], None]) -> Callable[[Tensor], None]:
        # Holds nothing that holds the parameter: Python finds no cycle that goes through such a hook, and the
        # module would outlive its training.
        name, stream = self._names[index], self._stream

        def gradient_is_accumulated(parameter: Tensor) -> None:
            gradient = parameter.grad
            if gradient is not view:
                if gradient is None or gradient.is_sparse:
                    raise _sparse(name)
                view.copy_(gradient)
                parameter.grad = view
            if stream is not None:
                # Autograd computes a gradient on the stream that forward first used the parameter on.
                present = torch.cuda.current_stream(parameter.device)
                if present != stream:
                    stream.wait_stream(present)
            mark_ready(index)

        return gradient_is_accumulated

    def _gather(self, sink: GradientSink) -> None:
        """What the hooks do, for all parameters at once after backward.

        With one bucket there is nothing to overlap, and a hook costs several times as much a parameter.
        """
        ready, views, gradients = [], [], []
        for index, (parameter, view) in enumerate(zip(self._parameters, self._views, strict=True)):
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient is not view:
                if gradient.is_sparse:
                    raise _sparse(self._names[index])
                views.append(view)
                gradients.append(gradient)
                parameter.grad = view
            ready.append(index)
        if views:
            torch._foreach_copy_(views, gradients)
        self._is_whole = len(ready) == len(self._parameters)
        sink.mark_all_ready(ready)

    def train_batch(
        self,
        inputs: Sequence[Any],
        labels: Sequence[Any],
        weight: Any | None,
        num_rows: int,
        reference: float,
        loss_scale: float,
    ) -> list[float]:
        """Forward, loss and backward of a micro-batch; returns numerator, denominator and the metrics' sums.

        Backward runs on the local mean times denominator / `reference`, so that ranks and micro-batches weigh
        by what they hold, and times `loss_scale`, which the reduced gradients are divided by.
        """
        return self._train(_batch(inputs, labels, weight, num_rows), reference, loss_scale)

    def stage(
        self, inputs: Sequence[Any], labels: Sequence[Any], weight: Any | None, num_rows: int
    ) -> TensorBatch:
        """Begins to copy a batch to the device."""
        batch = _batch(inputs, labels, weight, num_rows)
        batch.labels, batch.facts = self.objective.on_host(batch.labels, batch.weight)
        return self._copier.send(batch)  # type: ignore[union-attr]

    def prepare(
        self,
        raw: Any,
        labels: Sequence[Any],
        weight: Any | None,
        num_rows: int,
        row_ids: Sequence[int],
        epoch: int,
        is_training: bool,
    ) -> Future[TensorBatch]:
        """Begins to make the inputs of a batch, whose columns `raw` has as Arrow takes them."""
        batch = _batch((), labels, weight, num_rows)
        return self.ahead.submit(  # type: ignore[union-attr]
            raw, batch.labels, batch.weight, row_ids, epoch, is_training
        )

    def _arrived(self, staged: TensorBatch | Future[TensorBatch]) -> TensorBatch:
        """A batch that `stage` or `prepare` gave, once it is there."""
        if isinstance(staged, Future):
            return staged.result()
        self._copier.receive(staged)  # type: ignore[union-attr]
        return staged

    def train_staged(
        self, staged: TensorBatch | Future[TensorBatch], reference: float, loss_scale: float
    ) -> list[float]:
        """As `train_batch`, of a batch that `stage` or `prepare` gave."""
        return self._train(self._arrived(staged), reference, loss_scale)

    def _train(self, batch: TensorBatch, reference: float, loss_scale: float) -> list[float]:
        if not self._is_read:
            self._read(batch)
        with self._autocast:
            output, value, denominator = self.objective(batch, True)
        # On a device the numbers set out before backward, which is not waited for.
        readback = None if self._device is None else self._read_back(output, value, batch)
        if denominator:
            if not value.requires_grad:
                raise self._detached()
            factor = denominator / reference * loss_scale
            (value if factor == 1.0 else _times(value, factor)).backward()
            if not self._hooks:
                self._gather(self._sink)  # type: ignore[arg-type]
        return self._sums(output, value, denominator, batch, readback)

    def _read_back(self, output: Any, value: Tensor, batch: TensorBatch) -> Readback:
        """The loss and the metrics' sums on their way from the device."""
        parts = [value.detach().to(torch.float64).reshape(1)]
        if self.metrics:
            parts.append(self._metric_sums(output, batch))
        return Readback(torch.cat(parts))

    def _sums(
        self, output: Any, value: Tensor, denominator: float, batch: TensorBatch, readback: Readback | None
    ) -> list[float]:
        """Numerator, denominator and the metrics' sums."""
        if readback is not None:
            mean, *metrics = readback.wait()
        else:
            mean = value.item() if denominator else 0.0
            metrics = self._metric_sums(output, batch).tolist() if self.metrics else []
        return [mean * denominator if denominator else 0.0, denominator, *metrics]

    def _detached(self) -> ParamError:
        return ParamError(
            f"{self.objective.name} does not depend on any trainable parameter: "
            "is the output detached, or made under no_grad, from .item() or by numpy?"
        )

    def _metric_sums(self, output: Any, batch: TensorBatch) -> Tensor:
        with torch.no_grad(), self._autocast:
            return torch.cat(
                [metric.update(output, batch.labels, batch.weight, batch.num_rows) for metric in self.metrics]
            )

    def optimizer_step(self, used: Sequence[bool] | None, rate_factor: float) -> None:
        """Steps the optimizer over the reduced gradients and drops them.

        `used` says which parameters any rank used in this step, None that all were: one that only others used
        takes its view, which holds the average; one that none used keeps no gradient, so that the optimizer
        passes it over. `rate_factor` is what the learning rates are multiplied by.
        """
        parameters = self._parameters
        if used is None and not self._is_whole:
            for parameter, view in zip(parameters, self._views, strict=True):
                if parameter.grad is None:
                    parameter.grad = view
        elif used is not None:
            for parameter, view, is_used in zip(parameters, self._views, used, strict=True):
                parameter.grad = view if is_used else None
        if self._schedules:
            if rate_factor != 1.0:
                raise ParamError(TWO_SCHEDULES)
        elif rate_factor != self._rate_factor:
            optimizers.scale_learning_rates(self.optimizer, rate_factor)
            self._rate_factor = rate_factor
        self._last_rate = optimizers.learning_rate(self.optimizer)
        self._step()
        self._drop_gradients()
        self.position.step += 1
        self.position.epoch_step += 1
        self._schedules.after_step(self.position.epoch_step)

    def learning_rate(self) -> float | None:
        """The learning rate of the last step that was taken, before any that the optimizer's own; of its
        first parameter group, None where that has none.
        """
        rate = optimizers.learning_rate(self.optimizer) if self._last_rate is None else self._last_rate
        return None if rate is None else float(rate)

    def skip_step(self) -> None:
        """In place of `optimizer_step` where the gradients overflowed."""
        self._drop_gradients()

    def _drop_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None
        self._is_whole = False

    # Evaluation.

    def evaluate_batch(
        self, inputs: Sequence[Any], labels: Sequence[Any], weight: Any | None, num_rows: int
    ) -> list[float]:
        """Forward and loss in eval mode; returns numerator, denominator and the metrics' sums."""
        return self._evaluate(_batch(inputs, labels, weight, num_rows))

    def evaluate_staged(self, staged: TensorBatch | Future[TensorBatch]) -> list[float]:
        """As `evaluate_batch`, of a batch that `stage` or `prepare` gave."""
        return self._evaluate(self._arrived(staged))

    def _read(self, batch: TensorBatch) -> None:
        """Has the module's last operation say how the metrics read its outputs, where the loss does not."""
        self._is_read = True
        self.module.eval()
        try:
            reading = metrics.reading_of(self._forward, batch.inputs, self.objective.ignore_index)
        finally:
            self.module.train()
        if reading is not None:
            self.metrics, self.gathered = metrics.build(self._given_metrics, reading)
            if self._device is not None:
                self._move_metrics(self._device)

    def _make_metrics(self, layout: Layout) -> tuple[list[metrics.Metric], list[gathered.GatheredMetric]]:
        """Those of sums and those that are gathered: what is given, or what the module's own steps log."""
        if not isinstance(self.objective, Steps):
            return metrics.build(self._given_metrics, metrics.Reading.of(self.objective))
        self.objective.names = logged_names(self.module, layout)
        return list(self.objective.metrics()), []

    def _move_metrics(self, device: torch.device) -> None:
        for summed in self.metrics:
            summed.to(device)
        for metric in self.gathered:
            metric.to(device)

    def _evaluate(self, batch: TensorBatch) -> list[float]:
        if not self._is_read:
            self._read(batch)
        self.module.eval()
        try:
            # Not inference_mode: a module may cache a tensor that it makes here, and training could not use
            # that one.
            with torch.no_grad(), self._autocast:
                output, value, denominator = self.objective(batch, False)
        finally:
            self.module.train()
        readback = None if self._device is None else self._read_back(output, value, batch)
        for metric in self.gathered:
            metric.update(output, batch.labels, batch.weight, batch.num_rows)
        return self._sums(output, value, denominator, batch, readback)

    def take_gathered(self) -> bytes | None:
        """What the metrics that are gathered have kept since the last call, which they forget; None where
        there are none.
        """
        return gathered.pack(self.gathered) if self.gathered else None

    def finish_gathered(self, states: Sequence[bytes]) -> list[tuple[str, float]]:
        """Those metrics by name, from what each rank's `take_gathered` gave."""
        return gathered.finish(self.gathered, states)

    def finish_metrics(self, training: bool, sums: Sequence[float]) -> list[tuple[str, float]]:
        """The metrics by name, from their sums over all rows of an epoch, of training or of validation. All
        ranks call it alike, of training rows once the last step is taken.
        """
        if training:
            self._schedules.after_epoch(self.position.epoch + 1)
        finished = []
        start = 0
        for metric in self.metrics:
            if _is_of(metric, training):
                value = metric.finish(list(sums[start : start + metric.size]))
                finished.append((metric.name, float(value)))
            start += metric.size
        return finished

    def end_epoch(self, figures: Mapping[str, float | None]) -> None:
        """An epoch and its validation have ended, with these losses and metrics by the names of the history;
        None stands for what is not a finite number.
        """
        values = {name: math.nan if value is None else value for name, value in figures.items()}
        of_validation = {name.removeprefix("val_"): value for name, value in values.items()}
        self._schedules.after_validation(self.position.epoch + 1, {**of_validation, **values})
        self.position.end_epoch()

    # State.

    def save_state(self, file: Any) -> None:
        """Writes the module's and the optimizer's state to a binary file object."""
        with uncompiled():
            optimizer = self.optimizer.state_dict()
        state = {
            "model": self.module.state_dict(),
            "unlisted": _unlisted_buffers(self.module),
            "optimizer": optimizer,
            "optimizerClass": _class_name(self.optimizer),
            "optimizerParameters": self._optimizer_names(),
            "schedules": self._schedules.state(),
            "progress": self.position.state(),
            "rate": None if self._last_rate is None else float(self._last_rate),
        }
        torch.save(state, file)

    def load_state(self, data: bytes) -> None:
        """Takes back what `save_state` wrote."""
        state = _load(data)
        self.module.load_state_dict(state["model"])
        buffers = dict(self.module.named_buffers())
        with torch.no_grad():
            for name, value in state["unlisted"].items():
                buffers[name].copy_(value)
        with uncompiled():
            self.optimizer.load_state_dict(state["optimizer"])
        self._rate_factor = math.nan
        self._schedules.take(state["schedules"])
        self.position.take(state["progress"])
        self._last_rate = state["rate"]

    def load_optimizer_state(self, data: bytes) -> None:
        """Takes the optimizer's part of what `save_state` wrote in another training: all but its rates and
        other options. Raises ParamError where that is another runtime's or optimizer's, or one of other
        parameters.
        """
        if not zipfile.is_zipfile(io.BytesIO(data)):
            raise ParamError(
                'initialState: the checkpoint is of runtime="native", and this training has runtime="python"'
            )
        state = _load(data)
        theirs, ours = state["optimizerClass"], _class_name(self.optimizer)
        if theirs != ours:
            raise ParamError(f"initialState: the checkpoint holds the state of {theirs}, not of {ours}")
        shapes = {name: list(value.shape) for name, value in state["model"].items()}
        for name, parameter in zip(self._names, self._parameters, strict=True):
            if shapes.get(name) != list(parameter.shape):
                raise ParamError(
                    f"initialState: the parameter {name} is {list(parameter.shape)}, and the checkpoint's is "
                    f"{shapes.get(name, 'not there')}"
                )
        saved = state["optimizer"]["state"]
        slots = {name: saved.get(number) for number, name in enumerate(state["optimizerParameters"]) if name}
        own = enumerate(self._optimizer_names())
        taken = {number: slots[name] for number, name in own if name and slots.get(name)}
        with uncompiled():
            groups = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict({"state": taken, "param_groups": groups})
        if not isinstance(self.optimizer, (Adam, AdamW, RMSprop, SGD)):
            return
        for group in self.optimizer.param_groups:
            for slot in (slot for option, slot in _SLOTS.items() if group.get(option)):
                for parameter in group["params"]:
                    if kept := self.optimizer.state.get(parameter):
                        kept.setdefault(slot, torch.zeros_like(parameter))

    def _optimizer_names(self) -> list[str | None]:
        """The names of the parameters that the optimizer has, by its numbers for them."""
        names = {id(one): name for name, one in zip(self._names, self._parameters, strict=True)}
        groups = self.optimizer.param_groups
        return [names.get(id(parameter)) for group in groups for parameter in group["params"]]

    def save_rank_state(self) -> bytes:
        """This rank's random generators: torch's, CUDA's where it runs, numpy's and Python's."""
        file = io.BytesIO()
        torch.save(generators.state(), file)
        return file.getvalue()

    def load_rank_state(self, data: bytes) -> None:
        """Takes back what `save_rank_state` gave."""
        generators.set_state(_load(data))

    def write_weights(self, directory: str) -> list[str]:
        """Writes the module's weights as `weights.safetensors` under `directory`; returns the names of the
        files written.
        """
        save_module(self.module, Path(directory) / "weights.safetensors")
        return ["weights.safetensors"]


def _is_of(metric: metrics.Metric, training: bool) -> bool:
    """Whether a metric is one of training rows, or of validation rows."""
    return not isinstance(metric, LoggedMean) or metric.step == (TRAINING if training else VALIDATION)


def _class_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _shared(name: str, tensor: Tensor, copy: Tensor | None = None) -> _SharedTensor:
    """A tensor, or its copy in main memory. Raises ParamError for one that is not dense."""
    if not is_dense(tensor):
        raise ParamError(
            f"model: {name} has elements that share memory; make it a tensor of its own with .clone()"
        )
    held = tensor if copy is None else copy
    num_bytes = held.numel() * held.element_size()
    return name, held.data_ptr(), held.numel(), _DTYPES.get(held.dtype), num_bytes


def _batch(inputs: Sequence[Any], labels: Sequence[Any], weight: Any | None, num_rows: int) -> TensorBatch:
    """A batch of capsules as tensors."""
    return TensorBatch(
        list(map(from_dlpack, inputs)),
        list(map(from_dlpack, labels)),
        None if weight is None else from_dlpack(weight),
        num_rows,
    )


def _sparse(name: str) -> ParamError:
    return ParamError(
        f"model: {name} got a sparse gradient, which is not supported; make it dense, with sparse=False"
    )


def _times(loss: Tensor, factor: float) -> Tensor:
    """A loss times a factor, in a type that holds both: the first loss scale is beyond float16."""
    return (loss.float() if loss.dtype == torch.float16 else loss) * factor


def _load(data: bytes) -> dict[str, Any]:
    """Reads a checkpoint: tensors, numbers and collections of them. What else an optimizer keeps has to be on
    torch's list of safe globals.
    """
    state: dict[str, Any]
    try:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ParamError(
            "the checkpoint holds objects that are no tensors or numbers, which are not read: have the "
            "optimizer keep tensors, or add their class by torch.serialization.add_safe_globals in the "
            f"module that defines it ({error})"
        ) from error
    return state


def _unlisted_buffers(module: nn.Module) -> dict[str, Tensor]:
    """The buffers that state_dict leaves out (persistent=False)."""
    listed = module.state_dict(keep_vars=True)
    return {name: buffer for name, buffer in module.named_buffers() if name not in listed}
