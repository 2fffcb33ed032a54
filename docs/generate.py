"""Writes the pages that come from the code: python -m docs.generate"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import click

from trcomp import errors, flags
from trcomp.backends import measurements, results
from trcomp.cli import cli

HERE = Path(__file__).parent
_NOTE = "<!-- Written by docs/generate.py from the code; do not edit. -->\n"
_EACH_LINE = "each line of the message says what is allowed; nothing has been started or uploaded"
_LOGS = "`trcomp logs JOB` has all lines; the [runbook](runbook.md#it-fails) goes by what they say"
CAUSES = {
    "BackendUnavailableError": (
        "no container engine answers, a service refuses, a directory cannot be written",
        "what the message names; `trcomp doctor` finds the rest",
    ),
    "ContractError": (
        "what started the container wrote other files than SageMaker does, or a variable was "
        "changed by hand",
        "start the script through trcomp; the [contract](contract.md) has each file",
    ),
    "DeviceError": (
        "the script asks for what the device cannot do, or a rank cannot find the others",
        "the message's next step; `TRCOMP_EAGER=1` raises it at the script's own line",
    ),
    "DeviceMemoryError": (
        "what the step needs at once is more than the device has",
        "a smaller batch, `torch.utils.checkpoint`, or more devices; the message lists the largest",
    ),
    "ForkedProcessError": (
        "a data loader's worker or another forked process touches `xla` tensors",
        "keep datasets and collate functions on the CPU, or start processes by `spawn`",
    ),
    "InternalError": (
        "a defect of trcomp, or a file that another version has written",
        "report the lines above it, with `trcomp doctor`'s",
    ),
    "JobCapacityError": (
        "SageMaker had no instances of that type free",
        "`fit(retries=...)`, another type, another region",
    ),
    "JobError": ("one job, which the message names", "see the kinds below it in the tree"),
    "JobFailedError": ("the script of the rank that the message names", _LOGS),
    "JobLimitError": (
        "the job ran, or waited for spot instances, as long as it may",
        "a larger `max_run` or `max_wait`; checkpoints let the next job go on from here",
    ),
    "JobNotFoundError": (
        "a mistyped name, a job that was removed, another `TRCOMP_HOME` or region",
        "`trcomp list`",
    ),
    "JobRunningError": ("the job has not ended", "wait for it, or `trcomp stop JOB`"),
    "JobStoppedError": (
        "somebody stopped it: Ctrl-C, `trcomp stop`, the console",
        "start it anew; [checkpoints](contract.md) let it go on",
    ),
    "JobTimeoutError": ("`wait(timeout)` was shorter than the job", "wait again: the job goes on"),
    "MissingExtraError": ("the package is not installed", "the `pip install` of the message"),
    "OutOfScopeError": (
        "a script for SageMaker's SDK v2 uses what lies beyond training",
        "the class of SDK v3 that the message names",
    ),
    "PeerLostError": (
        "that rank raised, was killed, or its host is gone",
        "the failure that the job reports first; " + _LOGS,
    ),
    "QuotaError": (
        "the account's quota for that instance type",
        "ask for more in the Service Quotas console, or take another type",
    ),
    "RankFailedError": ("that rank's own failure, which stands above", _LOGS),
    "RanksDifferError": (
        "a collective or an optimizer step under `if rank == 0`, or sizes that differ by rank",
        "the same calls in the same order on each rank",
    ),
    "SpecError": ("words that are mistyped, out of range or do not go together", _EACH_LINE),
    "TrcompError": ("see the kinds below it in the tree", "the message's next step"),
    "UnevenDataError": (
        "ranks have different numbers of batches",
        "`DistributedSampler(drop_last=True)`, or as many batches for each",
    ),
    "UnsupportedError": ("the feature is out of scope", "what the message names in its place"),
}
"""Of each exception what it mostly comes from, and what to do."""


def errors_page() -> str:
    """Every exception: its place in the tree, its exit code, what it comes from, what to do."""
    tree = inspect.getdoc(errors) or ""
    about = "Each message ends with the place on this page that explains its kind."
    runbook = "By what you see rather than by name: the [runbook](runbook.md)."
    lines = ["# Errors", "", _NOTE, f"{about} {runbook}", ""]
    lines += ["```", tree.partition("\n\n")[2], "```", ""]
    for name, kind in sorted(vars(errors).items()):
        if isinstance(kind, type) and issubclass(kind, errors.TrcompError):
            own = kind in {errors.JobFailedError, errors.RankFailedError}
            code = "the script's own" if own else kind.exit_code
            cause, fix = CAUSES[name]
            lines += [f"## {name}", "", f"Exit code: {code}.", "", inspect.getdoc(kind) or "", ""]
            lines += [f"**Comes from:** {cause}.", "", f"**Do:** {fix}.", ""]
    return "\n".join(lines).rstrip() + "\n"


def flags_page() -> str:
    """Every TRCOMP_* variable."""
    lines = ["# Flags", "", _NOTE, "Environment variables that trcomp reads.", ""]
    lines += ["| variable | default | what it does |", "|---|---|---|"]
    for flag in flags.ALL:
        default = f"`{int(flag.default)}`" if flag.default != "" else ""
        note = " Part of the compile key." if flag.in_key else ""
        lines.append(f"| `{flag.name}` | {default} | {flag.help}{note} |")
    return "\n".join(lines) + "\n"


def cli_page() -> str:
    """Every command with its arguments and options."""
    lines = ["# Command line", "", _NOTE]
    for name, command in sorted(_commands(cli)):
        arguments = [option for option in command.params if isinstance(option, click.Argument)]
        options = [option for option in command.params if option not in arguments]
        words = ["trcomp", name, *["[options]" for _ in options[:1]], *map(_argument, arguments)]
        lines += [f"## {' '.join(words)}", "", inspect.cleandoc(command.help), ""]
        if options:
            lines += ["| option | default | what it does |", "|---|---|---|"]
            lines += [*map(_option_row, options), ""]
    return "\n".join(lines).rstrip() + "\n"


def _commands(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """Each command by what is typed for it."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def _argument(argument: click.Argument) -> str:
    name = argument.metavar or (argument.name or "").upper()
    if argument.required:
        return name
    return f"[{name}]" if argument.nargs == 1 else f"[-- {name}...]"


def _option_row(option: click.Option) -> str:
    spelling = ", ".join(f"`{text}`" for text in [*option.opts, *option.secondary_opts])
    default = f"`{option.default}`" if option.show_default else ""
    return f"| {spelling} | {default} | {option.help or ''} |"


def metrics_page() -> str:
    """Every measurement of a rank's report, and what a job's totals make of it."""
    lines = ["# Metrics", "", _NOTE, inspect.cleandoc(_METRICS), ""]
    lines += ["| name | unit | what it is | the job's |", "|---|---|---|---|"]
    hints = get_type_hints(measurements.RankReport, include_extras=True)
    for name, field in measurements.RankReport.model_fields.items():
        total = _TOTALS.get(name, "the largest of its ranks" if name in results.LARGEST else "")
        unit = next(_units(hints[name]), "")
        lines.append(f"| `{name}` | {unit} | {field.description} | {total} |")
    return "\n".join(lines) + "\n"


def _units(hint: Any) -> Iterator[str]:
    """The unit that a type is annotated with, however deep."""
    yield from (part for part in getattr(hint, "__metadata__", ()) if isinstance(part, str))
    for part in get_args(hint):
        yield from _units(part)


_TOTALS = {
    "fallbacks": "added up",
    "samples_per_second": "added up",
    "varying": "of the first rank that has some",
}
_METRICS = """
What each rank leaves of itself as it ends. `trcomp report JOB --json` prints all of it,
`rt.metrics()` in the script the counters so far, and [the job's page](runbook.md#where-to-look)
draws them. Seconds are counted from when trcomp was loaded in the rank's process. In which order to
look at them when a job is slow: [the runbook](runbook.md#it-is-slow). A script could write these
files too: a value of the wrong kind is left out.
"""
PAGES = {
    "errors.md": errors_page,
    "flags.md": flags_page,
    "cli.md": cli_page,
    "metrics.md": metrics_page,
}


def main() -> None:
    """Write every page beside this file."""
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
