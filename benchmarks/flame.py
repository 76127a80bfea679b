"""Shortens the stacks of a profile, so that a flame graph of them can be read.

Reads folded stacks (`inferno-collapse-perf`), prints folded stacks, which `run.py --page` draws. Each begins
at the first frame that matches ROOT; frames of interpreters, dispatchers and runtimes, which are in all of
them, are left out.

    perf record -F 399 --call-graph dwarf,24576 -p PID -o perf.data -- sleep 12
    perf script -i perf.data --no-inline | inferno-collapse-perf > stacks
    python benchmarks/flame.py 'Stepper::step' < stacks > benchmarks/results/step.folded
"""

from __future__ import annotations

import re
import sys
from collections import Counter

EVERYWHERE = re.compile(
    r"_?Py|py|PyObject|cfunction|slot_tp|(method_)?vectorcall|type_call|module_getattro|\[unknown\]|_start|pyo3|THP"
    r"|std::|core::|alloc::|libc|__libc|from_iter|next$|write_from|decompress$"
    r"|c10::|at::_ops|at::wrapper|at::redispatch|at::native::(AVX|structured)|torch::autograd::(VariableType|python|THP)"
    r"|torch::autograd::(Engine::(execute|thread_main|evaluate)|Node::operator)"
    r"|asm_|entry_SYS|do_syscall|do_user|exc_page|(__)?handle_mm"
)
PER_WHOLE = 100_000
"""What the printed counts add up to."""


def shortened(frame: str) -> str:
    """The function's name without arguments, generics and the type that a method is of."""
    name = re.sub(r"\(.*\)", "", frame.replace("(anonymous namespace)::", ""))
    while (without := re.sub(r"<[^<>]*>", "", name)) != name:
        name = without
    return name.strip().removeprefix("::")[:90] or "?"


def short_stack(stack: str, root: re.Pattern[str]) -> str:
    """The stack from its root on."""
    frames = [shortened(frame) for frame in stack.split(";")]
    start = next((place for place, frame in enumerate(frames) if root.search(frame)), None)
    if start is not None:
        frames = frames[start:]
    elif "mkl" in stack:
        frames = ["matrix products (MKL keeps no trace of who calls)", frames[-1]]
    else:
        frames = ["other threads and startup", frames[-1]]
    kept = [frame for frame in frames if not EVERYWHERE.match(frame)]
    return ";".join(frame for place, frame in enumerate(kept) if place == 0 or frame != kept[place - 1])


def main(root: str) -> None:
    """Prints the short stacks of those on standard input."""
    pattern, total = re.compile(root), Counter[str]()
    for line in sys.stdin:
        stack, _, count = line.rpartition(" ")
        total[short_stack(stack, pattern) or "?"] += int(count)
    whole = sum(total.values())
    for stack, count in total.items():
        print(stack, count * PER_WHOLE // whole)


if __name__ == "__main__":
    main(*sys.argv[1:])
