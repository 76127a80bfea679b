"""The random generators of a process that a module may draw from: torch's, CUDA's, numpy's and Python's."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def seed(seed: int, step: int, rank: int) -> None:
    """Seeds all of them from (seed, step, rank) alone."""
    digest = hashlib.sha256(f"{seed}:{step}:{rank}".encode()).digest()
    random.seed(digest)
    np.random.seed(np.frombuffer(digest, dtype=np.uint32))
    torch.manual_seed(int.from_bytes(digest[:8], "little"))


def state() -> dict[str, Any]:
    """Where they are; CUDA's, of the present device, where it runs."""
    kind, keys, *rest = np.random.get_state()
    return {
        # Not of the generator itself: see forked_rng for what a thread that seeds it would wait for.
        "torch": torch.default_generator.clone_state().get_state(),
        "cuda": [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else [],
        "numpy": (str(kind), np.asarray(keys).tolist(), *rest),
        "python": random.getstate(),
    }


def set_state(state: Mapping[str, Any]) -> None:
    """Takes back what `state` gave."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(state["cuda"][0])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    random.setstate(state["python"])
