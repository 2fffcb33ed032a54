"""`trcomp doctor`: what this machine lacks, or what a job lost time on, and what to do about it."""

from __future__ import annotations

import dataclasses
from collections import Counter

import click

from trcomp import advice, doctor
from trcomp.doctor.findings import Asked, Finding
from trcomp.errors import BackendUnavailableError, Problem, SpecError
from trcomp.follow import unmeasured
from trcomp.job import Job
from trcomp.job_argument import handles
from trcomp.json_output import json_option, print_json

_COLORS = {"ok": "green", "warning": "yellow", "problem": "red"}


@click.command(name="doctor")
@click.argument("job", required=False, shell_complete=handles)
@click.option("--gpu", is_flag=True, help="This machine is to train on GPUs: what lacks for it.")
@click.option(
    "--online", is_flag=True, help="Also call AWS: whose credentials these are, the clock."
)
@json_option
def examine(job: str | None, gpu: bool, online: bool, as_json: bool) -> None:
    """Check this machine: versions, GPUs, disk, network, container engine, AWS; say what to do.

    Nothing is changed. Exits with 69 if there is a problem, with 0 if there are only warnings.

    With a JOB: what it lost time on, and the three changes that would save most.
    """
    if job is None:
        _examine_machine(Asked(gpu=gpu, online=online), as_json)
        return
    given = {"--gpu": gpu, "--online": online}
    wrong = [Problem(name, True, "about this machine; leave it, or JOB, out.") for name in given]
    if problems := [problem for problem in wrong if given[problem.field]]:
        raise SpecError(problems)
    _examine_job(Job.attach(job), as_json)


def _examine_job(job: Job, as_json: bool) -> None:
    """What a job's workers measured, in words."""
    report = job.report()
    spent, found = advice.shares(report), advice.most_helpful(report)
    if as_json:
        changes = [dataclasses.asdict(one) for one in found]
        print_json({"job": job.handle, "seconds": spent, "changes": changes})
        return
    total = sum(spent.values())
    if not total:
        click.echo(unmeasured(job))
        return
    steps = report["totals"].get("steps", 0)
    parts = ", ".join(f"{seconds / total:.0%} {name}" for name, seconds in spent.items() if seconds)
    click.echo(f"{job.handle}: {steps:,} steps in {total:.1f} s; {parts}.\n")
    if not found:
        click.echo("Nothing stands out: no change would save a hundredth of that.")
    for number, one in enumerate(found, start=1):
        click.echo(click.style(f"{number}. {one.change}", bold=True))
        where = f" At {one.line}." if one.line else ""
        click.echo(f"   {one.because}{where} Saves up to {one.seconds:.1f} s.")


def _examine_machine(asked: Asked, as_json: bool) -> None:
    findings = []
    for finding in doctor.examine(asked):
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
