"""`trcomp doctor`: what this machine has, lacks, and what to do about it."""

from __future__ import annotations

import dataclasses
from collections import Counter

import click

from trcomp import doctor
from trcomp.doctor.findings import Asked, Finding
from trcomp.errors import BackendUnavailableError
from trcomp.json_output import json_option, print_json

_COLORS = {"ok": "green", "warning": "yellow", "problem": "red"}


@click.command(name="doctor")
@click.option("--gpu", is_flag=True, help="This machine is to train on GPUs: what lacks for it.")
@click.option(
    "--online", is_flag=True, help="Also call AWS: whose credentials these are, the clock."
)
@json_option
def examine_machine(gpu: bool, online: bool, as_json: bool) -> None:
    """Check this machine: versions, GPUs, disk, network, container engine, AWS; say what to do.

    Nothing is changed. Exits with 69 if there is a problem, with 0 if there are only warnings.
    """
    findings = []
    for finding in doctor.examine(Asked(gpu=gpu, online=online)):
        findings.append(finding)
        if not as_json:
            _show(finding)
    counts = Counter(finding.verdict for finding in findings)
    if as_json:
        print_json({"findings": [dataclasses.asdict(finding) for finding in findings]})
    else:
        click.echo(
            f"\n{_count(counts['problem'], 'problem')}, {_count(counts['warning'], 'warning')}"
        )
    if counts["problem"]:
        names = ", ".join(one.name for one in findings if one.verdict == "problem")
        raise BackendUnavailableError(
            f"Jobs would fail on this machine over: {names}.",
            "Do what stands behind each `fix`, then run `trcomp doctor` again.",
        )


def _show(finding: Finding) -> None:
    verdict = click.style(f"{finding.verdict:<8}", fg=_COLORS[finding.verdict])
    click.echo(f"{verdict} {finding.name:<18} {finding.found}")
    if finding.fix:
        click.echo(f"{'':<27} fix: {finding.fix}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
