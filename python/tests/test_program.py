"""Programs: skeletons, exported and scripted forms, and archives that are not to be trusted."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import threading
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import fitted
import pytest
import torch
from safetensors.torch import load_file, load_model
from torch import Tensor, nn

from flambeau._quiet import without_warnings
from flambeau._saved.archive import check_exported
from flambeau._saved.program import (
    _export,
    _quiet,
    compile_programs,
    dump_skeleton,
    instantiate,
    probe_output,
)
from flambeau._saved.weights import WeightsRef, load_into, save_module
from flambeau._tensors import TensorColumns
from flambeau.errors import DataError, FlambeauError, ParamError

FOUR = [fitted.features(4)]


class OnlyOnGpus(nn.Module):
    """It calls an operator that has no kernel for the CPU, and keeps what that gives."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.kept = torch.ops.flambeau_tests.twice(self.layer(x))
        return self.kept, self.kept.sigmoid()


def test_a_module_without_kernels_for_the_cpu_is_left_to_the_workers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    twice = torch.library.custom_op(
        "flambeau_tests::twice",
        lambda x: 2 * x,
        mutates_args=(),
        device_types="cuda",
        schema="(Tensor x) -> Tensor",
    )
    module = OnlyOnGpus()
    with pytest.raises(NotImplementedError, match="with arguments from the 'CPU' backend"):
        module(torch.zeros(2, 4))
    with pytest.raises(ParamError, match=r"runs neither on the CPU nor on the meta device.*register_fake"):
        probe_output(module, FOUR)
    twice.register_fake(torch.empty_like)
    found = [(tensor.shape, tensor.dtype, tensor.activation) for tensor in probe_output(module, FOUR).tensors]
    assert found == [((3,), "float32", None), ((3,), "float32", "sigmoid")]
    assert module.kept is None, "it would be of the meta device"
    assert "forward is left to workers to try, as it does not run on the CPU" in caplog.text
    assert module.training and module.layer.weight.device.type == "cpu"
    with pytest.raises(ParamError, match="fails on inputs of the columns' shapes"):
        probe_output(nn.Linear(5, 1), FOUR)


def test_weights_are_what_safetensors_reads(tmp_path: Path) -> None:
    module = fitted.trained(fitted.Mlp())
    ref = save_module(module, tmp_path / "w.safetensors")
    assert ref == WeightsRef.of_file(tmp_path / "w.safetensors")
    read = load_file(ref.uri)
    assert sorted(read) == sorted(module.state_dict())
    assert all(torch.equal(value, read[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.bool, torch.uint8]
)
def test_weights_keep_dtypes_and_layouts(tmp_path: Path, dtype: torch.dtype) -> None:
    module = nn.Module()
    values = torch.arange(30).reshape(5, 6)
    module.register_buffer("across", values.to(dtype).t())
    module.register_buffer("none", torch.empty((0, 3), dtype=dtype))
    module.register_buffer("single", torch.tensor(1).to(dtype))
    ref = save_module(module, tmp_path / "w.safetensors")
    read = load_file(ref.uri)
    assert all(
        torch.equal(value, read[name]) and value.dtype == read[name].dtype
        for name, value in module.state_dict().items()
    )


def test_ties_are_written_once_and_hold(tmp_path: Path) -> None:
    module = fitted.Tied()
    ref = save_module(module, tmp_path / "w.safetensors")
    assert len(load_file(ref.uri)) == 1
    other = fitted.Tied()
    load_model(other, ref.uri)
    assert torch.equal(other.output.weight, module.table.weight)
    again = load_into(instantiate({"pickle": dump_skeleton(module)}), ref.uri)
    assert isinstance(again, fitted.Tied)
    assert again.output.weight is again.table.weight
    assert torch.equal(again.table.weight, module.table.weight)


def test_skeleton_carries_no_weights(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(1000, 1000), nn.Linear(1000, 1))
    data = dump_skeleton(module)
    assert len(data) < 4000
    hollow = instantiate({"pickle": data})
    assert sum(p.untyped_storage().nbytes() for p in hollow.parameters()) < 100
    ref = save_module(module, tmp_path / "w.safetensors")
    full = load_into(hollow, ref.uri)
    x = torch.randn(3, 1000)
    assert torch.equal(full(x), module(x))
    assert not full.training and all(p.requires_grad for p in full.parameters())


def test_weights_of_another_module_are_refused(tmp_path: Path) -> None:
    ref = save_module(fitted.Mlp(), tmp_path / "w.safetensors")
    with pytest.raises(ParamError, match="lack layer"):
        load_into(fitted.Scalar(), ref.uri)
    with pytest.raises(ParamError, match=r"output\.weight is \[5, 8\].*\[3, 8\]"):
        load_into(fitted.Mlp(num_outputs=5), ref.uri)


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    ref = save_module(fitted.Mlp(), path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(FlambeauError, match="not a whole safetensors file"):
        load_into(fitted.Mlp(), path)
    with pytest.raises(DataError, match="SHA-256"):
        ref.local()


@pytest.mark.parametrize("share", [True, False])
def test_loaded_tensors_are_aligned(tmp_path: Path, share: bool) -> None:
    ref = save_module(fitted.Mlp(num_inputs=7, num_outputs=5), tmp_path / "w.safetensors")
    module = load_into(fitted.Mlp(num_inputs=7, num_outputs=5), ref.uri, share=share)
    assert all(tensor.data_ptr() % 64 == 0 for tensor in module.state_dict().values())


def test_both_forms_give_the_modules_bits(tmp_path: Path) -> None:
    module = fitted.trained(fitted.Mlp()).eval()
    ref = save_module(module, tmp_path / "w.safetensors")
    programs, reasons = compile_programs(module, FOUR, ref.uri)
    assert sorted(programs) == ["exported", "exportedTrain", "scripted"] and not reasons
    x = torch.randn(17, 4)
    for form in ("exported", "scripted"):
        program = load_into(instantiate({form: programs[form]}), ref.uri)
        with torch.inference_mode():
            assert torch.equal(program(x), module(x)), form


def test_the_training_graph_trains_as_the_module_does(tmp_path: Path) -> None:
    module = fitted.trained(fitted.Mlp())
    ref = save_module(module, tmp_path / "w.safetensors")
    programs, _ = compile_programs(module, FOUR, ref.uri)
    assert not module.training
    check_exported(programs["exportedTrain"])
    graph = torch.export.load(io.BytesIO(programs["exportedTrain"])).module()
    load_into(module, ref.uri).train()
    load_into(graph, ref.uri)
    x = torch.randn(6, 4)
    losses = []
    for program in (module, graph):
        torch.manual_seed(3)
        loss = program(x).square().sum()
        loss.backward()
        losses.append(loss)
    assert torch.equal(*losses)
    gradients = {name: parameter.grad for name, parameter in graph.named_parameters()}
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=0, atol=0)
    buffers = dict(graph.named_buffers())
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in module.named_buffers())
    assert buffers["norm.num_batches_tracked"] > 0


def test_a_training_graph_that_trains_otherwise_is_not_kept(tmp_path: Path) -> None:
    class Drifting(nn.Module):
        """Its graph adds the first call's count for ever."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += self.training
            return self.layer(x) + float(self.calls)

    module = Drifting()
    ref = save_module(module, tmp_path / "w.safetensors")
    programs, reasons = compile_programs(module, FOUR, ref.uri, forms=("exported", "exportedTrain"))
    assert sorted(programs) == ["exported"]
    assert "in training differs from the module's on a batch of" in reasons["exportedTrain"]


def test_ties_hold_in_an_exported_archive() -> None:
    data = _export(fitted.Tied().eval(), [TensorColumns("i", ("i",), "int64", ())])
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        name = next(name for name in archive.namelist() if name.endswith("weights_config.json"))
        config = json.loads(archive.read(name))["config"]
    assert config["table.weight"]["path_name"] == config["output.weight"]["path_name"]


def test_programs_run_in_plain_torch(tmp_path: Path) -> None:
    module = fitted.trained(fitted.Mlp()).eval()
    ref = save_module(module, tmp_path / "w.safetensors")
    programs, _ = compile_programs(module, FOUR, ref.uri)
    x = torch.randn(6, 4)
    exported = torch.export.load(io.BytesIO(programs["exported"])).module()
    exported.load_state_dict(load_file(ref.uri), assign=True)
    scripted = torch.jit.load(io.BytesIO(programs["scripted"]))
    for name, tensor in scripted.state_dict(keep_vars=True).items():
        tensor.data = load_file(ref.uri)[name]
    with torch.inference_mode():
        torch.testing.assert_close(exported(x), module(x))
        torch.testing.assert_close(scripted(x), module(x))


def test_reasons_are_given_for_forms_that_are_missing(tmp_path: Path) -> None:
    module = fitted.Branching()
    programs, reasons = compile_programs(module, FOUR, save_module(module, tmp_path / "w").uri)
    assert not programs
    assert "data-dependent" in reasons["exported"] and reasons["scripted"]


def test_a_form_with_other_bits_is_not_kept(tmp_path: Path) -> None:
    class Sly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) + (1.0 if torch.jit.is_scripting() else 0.0)  # type: ignore[attr-defined]

    module = Sly()
    programs, reasons = compile_programs(module, FOUR, save_module(module, tmp_path / "w").uri)
    assert "exported" in programs
    assert "differs" in reasons["scripted"]


def test_buffers_outside_the_state_and_constants_survive(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0, 4.0]), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * self.scale

    module = Scaled()
    ref = save_module(module, tmp_path / "w.safetensors")
    assert sorted(load_file(ref.uri)) == ["layer.bias", "layer.weight"]
    programs, reasons = compile_programs(module, FOUR, ref.uri)
    assert sorted(programs) == ["exported", "exportedTrain", "scripted"], reasons


def test_the_second_form_is_read_where_the_first_is_damaged(tmp_path: Path) -> None:
    module = fitted.Scalar()
    programs, _ = compile_programs(module, FOUR, save_module(module, tmp_path / "w").uri)
    assert isinstance(instantiate(programs), torch.jit.ScriptModule)
    read = instantiate({**programs, "scripted": b"no archive"})
    assert not isinstance(read, torch.jit.ScriptModule)
    read.eval()
    with pytest.raises(FlambeauError, match="scoring only"):
        read.train()
    with pytest.raises(FlambeauError, match=r"scripted: .*exported: "):
        instantiate({"exported": b"", "scripted": b"no archive"})


def test_probe_finds_outputs_and_changes_nothing() -> None:
    module = fitted.Mlp()
    module.hidden.eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    state = torch.get_rng_state()
    assert [t.shape for t in probe_output(module, FOUR).tensors] == [(3,)]
    assert module.training and not module.hidden.training
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


class Several(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"mean": x.mean(1), "all": x}


class Halves(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x[:, :2], x.sum(1, keepdim=True)


class Nothing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum()


class Text(nn.Module):
    def forward(self, x: Tensor) -> str:
        return "none"


def test_probe_names_several_outputs() -> None:
    assert [(t.name, t.shape) for t in probe_output(Several(), FOUR).tensors] == [("mean", ()), ("all", (4,))]
    assert [(t.name, t.shape) for t in probe_output(Halves(), FOUR).tensors] == [("_1", (2,)), ("_2", (1,))]


@pytest.mark.parametrize(
    ("module", "inputs", "message"),
    [
        (
            fitted.Mlp(),
            [*FOUR, fitted.features(2, name="other")],
            r"cannot take the inputs \(features, other\)",
        ),
        (fitted.Mlp(), [fitted.features(5)], r"fails on inputs .*features: \[2, 5\] float32"),
        (fitted.Mlp(), [TensorColumns("i", ("i",), "int64", (4,))], "fails on inputs"),
        (Nothing(), FOUR, "first dimension must be the rows"),
        (Text(), FOUR, "returns str"),
    ],
)
def test_probe_refuses_what_does_not_fit(
    module: nn.Module, inputs: list[TensorColumns], message: str
) -> None:
    with pytest.raises(ParamError, match=message):
        probe_output(module, inputs)


def test_two_threads_that_make_programs_leave_the_process_as_it_was(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """What each has swapped would be restored in the wrong order; and others go on printing meanwhile."""
    before = sys.stdout, logging.root.manager.disable, list(warnings.filters)
    first_is_in, second_is_in, first_is_out = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        with _quiet():
            first_is_in.set()
            second_is_in.wait(0.5)
            print("of the compiler")
            logging.getLogger("torch").error("of the compiler")
        first_is_out.set()

    def second() -> None:
        first_is_in.wait(10)
        with _quiet():
            second_is_in.set()
            first_is_out.wait(0.5)

    threads = [threading.Thread(target=target) for target in (first, second)]
    for thread in threads:
        thread.start()
    first_is_in.wait(10)
    print("of the user")
    logging.getLogger("mine").error("of the user")
    for thread in threads:
        thread.join()
    assert (sys.stdout, logging.root.manager.disable, list(warnings.filters)) == before
    assert capsys.readouterr().out == "of the user\n"
    assert [record.message for record in caplog.records] == ["of the user"]


def test_threads_without_warnings_wait_for_no_other() -> None:
    """As for one whose forward hangs."""
    before, both = list(warnings.filters), threading.Barrier(2, timeout=60)

    def run() -> None:
        with without_warnings():
            both.wait()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not both.broken
    assert list(warnings.filters) == before


def test_threads_that_fork_and_seed_the_random_generator_end() -> None:
    """With torch.random.fork_rng for forked_rng, or get_rng_state for what generators.state reads, they do
    not, in Python 3.11: a collection of garbage during that, as there are many here, lets another one in.
    """
    program = """
import faulthandler, gc, sys, threading, time, torch
from concurrent.futures import ThreadPoolExecutor
from flambeau._module import generators
from flambeau._quiet import forked_rng

ended = threading.Event()

def fork():
    for turn in range(1000):
        for _ in range(3):
            garbage = [torch.nn.Parameter(torch.ones(1))]
            garbage.append(garbage)
        kept = [[] for _ in range(turn % 3)]  # shifts which later allocation sets off a collection
        generators.state()
        with forked_rng():
            torch.rand(1)

def seed():
    while not ended.is_set():
        torch.manual_seed(1)
        time.sleep(0)

faulthandler.dump_traceback_later(100, exit=True)
gc.set_threshold(1)
gc.callbacks.append(lambda *_: time.sleep(1e-6))
sys.setswitchinterval(1e-6)
with ThreadPoolExecutor(3) as pool:
    forks = [pool.submit(fork) for _ in range(2)]
    seeds = pool.submit(seed)
    try:
        for one in forks:
            one.result()
    finally:
        ended.set()
    seeds.result()
torch.manual_seed(1)
with forked_rng():
    torch.rand(1)
left = torch.rand(2)
torch.manual_seed(1)
assert torch.equal(left, torch.rand(2))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_lazy_modules_are_refused_by_name() -> None:
    with pytest.raises(ParamError, match="weight is lazy"):
        dump_skeleton(nn.Sequential(nn.LazyLinear(3)))


@pytest.fixture(scope="module")
def exported() -> bytes:
    return _export(fitted.Mlp().eval(), FOUR)


def edited(data: bytes, edit: Callable[[str, bytes], bytes]) -> bytes:
    """The archive with its entries passed through `edit`."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(buffer, "w") as target:
        for entry in source.infolist():
            target.writestr(entry.filename, edit(entry.filename, source.read(entry)))
    return buffer.getvalue()


def in_model(edit: Callable[[dict[str, Any]], None]) -> Callable[[str, bytes], bytes]:
    def apply(name: str, data: bytes) -> bytes:
        if not name.endswith("models/model.json"):
            return data
        value = json.loads(data)
        edit(value)
        return json.dumps(value).encode()

    return apply


class Harm:
    def __reduce__(self) -> Any:
        raise AssertionError("a pickle was read")


def _call_system(model: dict[str, Any]) -> None:
    model["graph_module"]["graph"]["nodes"][0]["target"] = "torch.os.system"


def _call_library(model: dict[str, Any]) -> None:
    model["graph_module"]["graph"]["nodes"][0]["target"] = "torch.ops.load_library"


def _evaluate(model: dict[str, Any]) -> None:
    model["graph_module"]["graph"]["sym_int_values"]["s0"] = {
        "as_expr": {"expr_str": "__import__('os').system('true')", "hint": {"as_int": 3}}
    }


def _evaluate_range(model: dict[str, Any]) -> None:
    model["range_constraints"]["exec(chr(112))"] = {"min_val": 1, "max_val": 2}


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda name, data: cloudpickle.dumps(print) if "sample_inputs" in name else data, "sample inputs"),
        (lambda name, data: data.replace(b'"use_pickle": false', b'"use_pickle": true'), "pickled tensor"),
        (in_model(_call_system), "torch.os.system"),
        (in_model(_call_library), "load_library"),
        (in_model(_evaluate), "unknown names"),
        (in_model(_evaluate_range), "unknown names"),
        (lambda name, data: b"{" if name.endswith("models/model.json") else data, "not a whole archive"),
    ],
    ids=["sample inputs", "pickled weight", "os.system", "load_library", "expression", "range", "cut short"],
)
def test_archives_that_could_run_code_are_refused(
    exported: bytes, edit: Callable[[str, bytes], bytes], message: str
) -> None:
    check_exported(exported)
    changed = edited(exported, edit)
    assert changed != exported
    with pytest.raises(DataError, match=message):
        check_exported(changed)
    with pytest.raises(FlambeauError):
        instantiate({"exported": changed})


@pytest.mark.parametrize(
    "name", ["archive/data/weights/model.pt", "archive/data/constants/custom_obj_0", "archive/extra/run.py"]
)
def test_archives_with_other_entries_are_refused(exported: bytes, name: str) -> None:
    buffer = io.BytesIO(exported)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr(name, b"x")
    with pytest.raises(DataError, match="should not have"):
        check_exported(buffer.getvalue())


def test_any_bytes_are_refused_or_read(exported: bytes) -> None:
    damages = [exported[:cut] for cut in range(0, len(exported), 101)]
    for place in range(0, len(exported), 2):
        damaged = bytearray(exported)
        damaged[place] ^= 0xFF
        damages.append(bytes(damaged))
    for data in damages:
        try:
            check_exported(data)
        except DataError:
            continue
