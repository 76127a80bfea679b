"""A saved model as one file that plain PyTorch loads, without Flambeau and without Spark."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path

from flambeau._saved.program import exported_archive, instantiate
from flambeau._saved.weights import load_into, state_dict_of
from flambeau._spark.directory import Directory, load_metadata
from flambeau._spark.files import fetched
from flambeau._spark.saving.program_files import scripted_archive
from flambeau._spark.saving.stages import weights_of
from flambeau._spark.saving.trust import refusal
from flambeau._store import local_path
from flambeau.errors import ParamError

_FORMS = {".pt": "scripted", ".pt2": "exported"}


def convert(model: str, out: str, *, weights: bool = False) -> None:
    """Writes the model that was saved to a directory of this machine as the file `out`: its program with its
    weights inside, for `torch.jit.load` where that ends in `.pt`, for `torch.export.load` where it ends in
    `.pt2`; with `weights` the `state_dict` alone, for `torch.load`.

    No session's settings are known here, so a program is read only where it does nothing but compute; of
    weights nothing is run. Raises ParamError for a file that is there already or ends in neither, and where
    the model has no such program, and FlambeauError where it may not be read or there is no model.
    """
    import torch

    place, target = local_path(model), Path(out)
    if place is None:
        raise ParamError(f"{model} is not on this machine: copy the directory here first")
    if target.exists():
        raise ParamError(f"{out} is there already: remove it, or name another file")
    if not target.absolute().parent.is_dir():
        raise ParamError(f"{out}: there is no directory {target.absolute().parent}")
    form = None if weights else _FORMS.get(target.suffix)
    if form is None and not weights:
        raise ParamError(
            f"{out} ends in neither .pt, for torch.jit.load, nor .pt2, for torch.export.load: take one of "
            "them, or --weights for the state_dict alone"
        )
    directory = Directory(None, place.resolve().as_uri())
    saved = weights_of(None, directory.uri)
    program = None if form is None else _program(directory, form)
    # Beside it, so that it is there whole or not at all.
    with tempfile.TemporaryDirectory(dir=target.absolute().parent) as folder, fetched(saved) as path:
        made = Path(folder, target.name)
        if program is None:
            torch.save(state_dict_of(path), made)
        elif form == "exported":
            made.write_bytes(exported_archive(program, path))
        else:
            made.write_bytes(scripted_archive(load_into(instantiate({"scripted": program}), path)))
        os.replace(made, target)


def _program(directory: Directory, form: str) -> bytes:
    """The program of a saved model in that form, which does nothing but compute."""
    ours = load_metadata(None, directory.uri)["flambeau"]
    name = ours["programs"].get(form)
    if name is None:
        there = [suffix for suffix, other in _FORMS.items() if other in ours["programs"]]
        way_out = f"take {there[0]}" if there else "take --weights, which needs the module where it is loaded"
        reason = ours["reasons"].get(form, "it was not saved so")
        raise ParamError(f"{directory.path} has no {form} program ({reason}): {way_out}")
    entry = ours["files"][name]
    read = partial(directory.read, name, entry["size"], entry["sha256"])
    why = refusal(None, form, read)
    if why is not None:
        raise ParamError(
            f"{directory.path}: its {form} program may not be read: {why}; take --weights, which runs "
            "nothing of it"
        )
    return read()
