"""The page's section on training steps: who takes part, their figures, and what they should be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.bars import BARS
from benchmarks.contest import RECORDERS

Row = dict[str, Any]
_PEERS = {
    "eager": "PyTorch as it is: what a script does without trcomp.",
    "inductor": "`torch.compile(model)`, PyTorch's own compiler: what one would try first.",
    "trcomp": "each operator recorded, one executable a step.",
    "trcomp-compile": 'model and `optimizer.step` compiled with `torch.compile(backend="trcomp")`.',
    "torch_xla": "PyTorch/XLA's last release, whose lazy tracer is C++: what trcomp stands in for.",
    "openxla": '`torch.compile(model, backend="openxla")` of the same torch_xla.',
    "flax": "the same model written by hand in flax (linen) and optax: what XLA gives without "
    "PyTorch. Same jax as trcomp.",
}


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines)


def section(rows: Sequence[Row], machine_text: str) -> str:
    """All of it."""
    names = [name for name in _PEERS if any(name in row["peers"] for row in rows)]
    compilers = [name for name in names if name != "eager"]
    peers = "\n".join(f"- **{name}**{_version(rows, name)}: {_PEERS[name]}" for name in names)
    return f"""## A training step

Forward, backward and AdamW in float32, batch 8, two threads; the steps of all that take part
alternate. ({machine_text})

{peers}

![Ratio of a training step's time to PyTorch eager's, by model and contestant](performance.svg)

Time of a step: eager's, and the others' as ratios to it. Below 1 is faster than eager.

{_by_model(rows, names, _step)}

Time to the first finished step, imports and building aside; the step from which on times are within
5 % of the steady ones; executables compiled.

{_by_model(rows, compilers, _beginning)}

Time of the host in a step: of the script, and to find and start the executable.

{_by_model(rows, [name for name in names if name in RECORDERS], _host)}

{_memory_table(rows, names)}Geometric means over the models that both have, and what they should
be at most:

{_bars(rows)}
{_failures(rows)}"""


def _version(rows: Sequence[Row], name: str) -> str:
    for row in rows:
        found = row.get("versions", {}).get(name)
        if found and name in ("torch_xla", "flax"):
            return " (" + ", ".join(f"{package} {found[package]}" for package in found) + ")"
    return ""


def _by_model(rows: Sequence[Row], names: Sequence[str], cell: Callable[[str, Row], str]) -> str:
    cells = [
        (row["model"], *(cell(name, row["peers"].get(name, {})) for name in names)) for row in rows
    ]
    return table(["model", *names], cells)


def _step(name: str, figures: Row) -> str:
    if not figures:
        return ""
    return f"{figures['step_ms']:.1f} ms" if name == "eager" else _number(figures.get("ratio"))


def _beginning(name: str, figures: Row) -> str:
    if not figures:
        return ""
    parts = [f"{figures['first_step_seconds']:.1f} s"]
    if figures.get("steps_until_steady"):
        parts.append(f"step {figures['steps_until_steady']}")
    return ", ".join([*parts, f"{figures['compiles']}"])


def _host(name: str, figures: Row) -> str:
    return f"{figures['host_us'] / 1e3:.1f} ms" if figures else ""


def _memory(name: str, figures: Row) -> str:
    return str(figures.get("peak_rss_mb") or "")


def _memory_table(rows: Sequence[Row], names: Sequence[str]) -> str:
    if not any(figures.get("peak_rss_mb") for row in rows for figures in row["peers"].values()):
        return ""
    cells = _by_model(rows, names, _memory)
    return f"Most memory that the process ever had, in MB.\n\n{cells}\n\n"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _bars(rows: Sequence[Row]) -> str:
    found = [(bar, bar.ratio(rows)) for bar in BARS]
    cells = [(bar.text, f"{bar.most:.2f}", f"**{ratio:.2f}**") for bar, ratio in found if ratio]
    return table(["ratio", "at most", "measured"], cells)


def _failures(rows: Sequence[Row]) -> str:
    told = [
        f"- {row['model']}, {name}: {why}"
        for row in rows
        for name, why in row.get("failures", {}).items()
    ]
    return "\nWhat did not run, or not right:\n\n" + "\n".join(told) + "\n" if told else ""
