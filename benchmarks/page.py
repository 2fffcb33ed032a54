"""Writes the page of figures and its picture from benchmarks/results: python -m benchmarks.page"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import training_page
from benchmarks.contest import RECORDERS
from benchmarks.picture import picture
from benchmarks.training_page import table as _table

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
PICTURE = PAGE.with_suffix(".svg")
_NOTE = "<!-- Written by benchmarks/page.py from `make bench`; do not edit. -->"
_OWN_SCRIPT = """How much XLA gives depends on the model. Measure yours:

```sh
trcomp bench train.py --steps 50 -- --batch-size 32
```

runs the script three times as a job on this machine, until it has made so many steps: on PyTorch's
own device, as `trcomp run` runs it, and with each model compiled as it is moved to the device.
Nothing in the script changes. A table shows each one's time of a steady step, time to the first and
compiles; the last line says which form to use, and after how many steps its slower start is made up
for. `trcomp bench --json` prints the same for programs. Leave the machine alone meanwhile.
"""
_TRACING = """
The host's time of a step beside torch_xla's tracer, which is C++: (operations x time of each + time
to find and start the executable). An operation of trcomp's is a node of its graph; linear layers,
attention and the optimizer are one each.
"""
Row = dict[str, Any]


def _load(name: str) -> tuple[Row, list[Row]]:
    found = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found["machine"], found["rows"]


def _machine_text(machine: Row) -> str:
    versions = ", ".join(
        f"{name} {machine[name]}" for name in ("python", "torch", "jax", "transformers")
    )
    return f"{machine['date']}, {machine['cpus']} CPU cores ({machine['machine']}), {versions}"


def _training_step() -> str:
    machine, rows = _load("training_step")
    return training_page.section(rows, _machine_text(machine))


def _recording() -> str:
    machine, rows = _load("recording")
    table = _table(
        ["model", "operations", "an operator alone, median", "p90", "whole step", "its sync"],
        [
            (
                row["model"],
                sum(row[part]["operations"] for part in ("forward", "backward", "optimizer")),
                f"**{row['operator_us_median']} us**",
                f"{row['operator_us_p90']} us",
                f"{row['record_ms']} ms",
                f"{row['sync_ms']} ms",
            )
            for row in rows
        ],
    )
    beside = [
        (row["model"], *(_tracing(row["peers"].get(peer)) for peer in RECORDERS))
        for row in rows
        if row.get("peers")
    ]
    tracers = f"{_TRACING}\n{_table(['model', *RECORDERS], beside)}\n" if beside else ""
    return f"""## Recording

What the host pays for an operator: the call, its node, the tensor that comes out. The whole step
has PyTorch's modules, autograd and optimizer in it. ({_machine_text(machine)})

{table}
{tracers}"""


def _tracing(figures: Row | None) -> str:
    if figures is None:
        return ""
    record, start = figures["record_us"] / 1e3, figures["sync_us"] / 1e3
    each = f"{figures['operations']} x {figures['us_per_operation']} us"
    return f"**{record + start:.1f} ms** ({each} + {start:.1f} ms)"


def _host_times(rows: list[Row], forms: tuple[str, ...]) -> str:
    return _table(
        ["model", *forms],
        [
            (
                row["model"],
                *(
                    f"{(row[form]['recording_us'] + row[form]['sync_us']) / 1000:.1f} ms, "
                    f"{row[form]['nodes']} nodes"
                    for form in forms
                ),
            )
            for row in rows
        ],
    )


def _step() -> str:
    machine, rows = _load("step")
    table = _host_times(rows, ("recorded", "compiled", "whole step"))
    return f"""## Whole steps

Host time of a step, recording and sync together: recorded, with model and `optimizer.step`
compiled, and captured as a whole by [`trcomp.step`](whole-step.md). ({_machine_text(machine)})

{table}
"""


def _compiled() -> str:
    machine, rows = _load("compiled")
    table = _host_times(rows, ("recorded", "model compiled", "step compiled"))
    return f"""## torch.compile

Host time of a step, recording and sync together, when every operator is recorded, when the model
is compiled with `backend="trcomp"`, and when `optimizer.step` is too. ({_machine_text(machine)})

{table}
"""


def _warm_start() -> str:
    machine, rows = _load("warm_start")
    table = _table(
        ["model", "cold", "warm", "ratio"],
        [
            (
                row["model"],
                f"{row['cold_seconds']} s",
                f"{row['warm_seconds']} s",
                f"**{row['ratio']}**",
            )
            for row in rows
        ],
    )
    return f"""## Warm start

Seconds to the first finished step, imports aside, in a job's worker that compiles and in one whose
script has run before: it reads its executables from the disk while the script imports.
({_machine_text(machine)})

{table}
"""


def _loader() -> str:
    machine, rows = _load("loader")
    table = _table(
        ["model", "batch", "wait for input", "step", "without input", "moved by the script"],
        [
            (
                row["model"],
                f"{row['batch_mb']} MB",
                f"**{row['input_wait_percent']} %**",
                f"{row['loader_ms']} ms",
                f"{row['resident_ms']} ms",
                f"{row['script_ms']} ms",
            )
            for row in rows
        ],
    )
    return f"""## Input

A steady step fed by `DeviceLoader` from a data set in memory: the share of it that waits for input,
beside the same step on one batch that lies on the device, and on batches that the script moves.
({_machine_text(machine)})

{table}
"""


def _scaling() -> str:
    machine, rows = _load("scaling")
    table = _table(
        ["processes", "DistributedDataParallel", "to one", "trcomp", "to one"],
        [
            (
                row["processes"],
                f"{row['ddp_ms']} ms",
                row["ddp_to_one"],
                f"{row['trcomp_ms']} ms",
                f"**{row['trcomp_to_one']}**",
            )
            for row in rows
        ],
    )
    return f"""## More processes

A data parallel step of {rows[0]["model"]}, batch {rows[0]["batch"]} of all processes together, on
the same cores: PyTorch's own processes over gloo, and trcomp's. What is above 1 is what dividing
the work and averaging gradients cost. ({_machine_text(machine)})

{table}
"""


def _launch_overhead() -> str:
    machine, rows = _load("launch_overhead")
    table = _table(
        ["started by", "first line", "`import torch`"],
        [
            (row["form"], f"{row['first_line_seconds']} s", f"{row['import_torch_seconds']} s")
            for row in rows
        ],
    )
    return f"""## Starting

From `fit()`, or the start of Python, to the first line of the script, in the slowest worker; then
what `import torch` takes in it, which brings up the runtime. ({_machine_text(machine)})

{table}
"""


_SECTIONS = {
    "training_step": _training_step,
    "recording": _recording,
    "compiled": _compiled,
    "step": _step,
    "warm_start": _warm_start,
    "loader": _loader,
    "scaling": _scaling,
    "launch_overhead": _launch_overhead,
}


def main() -> None:
    """Write both: a section for each benchmark that has been run."""
    sections = [
        section() for name, section in _SECTIONS.items() if (RESULTS / f"{name}.json").exists()
    ]
    intro = (
        f"# Performance\n\n{_NOTE}\n\nMedians of `make bench` on the machine and date that each "
        "section names. Compare ratios, not\ntimes: they were measured side by side in one run. "
        "Nothing was measured on a GPU so far.\nWhat the figures that miss their bar come from: "
        "[what bounds a step](performance-bounds.md).\n\n"
        f"{_OWN_SCRIPT}"
    )
    PAGE.write_text("\n".join((intro, *sections)), encoding="utf-8")
    PICTURE.write_text(picture(_load("training_step")[1]), encoding="utf-8")


if __name__ == "__main__":
    main()
