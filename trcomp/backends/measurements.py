"""What a rank's report holds: each measurement with its unit and meaning, checked as it is read.

A report lies among the files that the script itself may write, so a damaged one must cost what is
damaged and no more.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Number = Annotated[float, Field(ge=-1e15, le=1e15, allow_inf_nan=False)]
Seconds = Annotated[Number, "s"]
Bytes = Annotated[Number, "bytes"]
PerSecond = Annotated[Number, "1/s"]
_Pair = Annotated[list[Number], Field(min_length=2, max_length=2)]


class _Checked(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class Compile(_Checked):
    """A graph that became an executable."""

    step: Count
    at_seconds: Seconds
    seconds: Seconds
    operations: Count
    loaded: bool
    reason: str
    line: str
    bytes: Bytes = 0.0
    kind: str = ""


class Cause(_Checked):
    """What graphs were compiled for at one line of the script."""

    kind: str
    example: str
    line: str
    compiles: Count
    seconds: Seconds


class Interruption(_Checked):
    """A line that cuts steps, or has an operator run on the CPU."""

    kind: str
    name: str
    line: str
    count: Count
    cuts: Count
    seconds: Seconds


class Profile(_Checked):
    """A trace in output/data, and its first and last step."""

    steps: Annotated[list[Count], Field(min_length=2, max_length=2)]
    file: Annotated[str, Field(pattern=r"^profile/[\w.-]+$")]


class Timeline(_Checked):
    """What happened when, thinned out."""

    steps: list[Annotated[list[Number], Field(min_length=3, max_length=3)]]
    made: list[_Pair] = []
    compiles: list[Compile]
    memory: list[_Pair]


class VaryingInput(_Checked):
    """An input that came in several shapes."""

    input: Count
    dtype: str
    shapes: Annotated[list[list[Count]], Field(min_length=2)]


class Varying(_Checked):
    """A graph that was compiled for several shapes."""

    operations: Count
    compiles: Count
    line: str
    inputs: Annotated[list[VaryingInput], Field(min_length=1)]


class RankReport(_Checked):
    """One rank's measurements, from its process's start to its end."""

    rank: Annotated[Count, Field(description="The rank.")]
    world_size: Annotated[Count, Field(description="Ranks of the job.")] = 1
    host: Annotated[str, Field(description="The rank's host.")] = ""
    steps: Annotated[Count, Field(description="Steps that ended with something to compute.")] = 0
    compiles: Annotated[Count, Field(description="Graphs that XLA compiled.")] = 0
    loads: Annotated[
        Count, Field(description="Graphs whose executable an earlier process had left on disk.")
    ] = 0
    cache_hits: Annotated[
        Count, Field(description="Graphs whose executable this process had already.")
    ] = 0
    executions: Annotated[Count, Field(description="Executables that were run.")] = 0
    recorded_nodes: Annotated[Count, Field(description="Operations recorded.")] = 0
    early_syncs: Annotated[
        Count, Field(description="Steps cut short since a value was read within them.")
    ] = 0
    reads_aside: Annotated[
        Count, Field(description="Values computed beside the step, without cutting it.")
    ] = 0
    captures: Annotated[Count, Field(description="Forms of steps captured as a whole.")] = 0
    refused_captures: Annotated[
        Count, Field(description="Forms of steps that could not be captured.")
    ] = 0
    replays: Annotated[Count, Field(description="Calls of captured steps.")] = 0
    donated_buffers: Annotated[
        Count, Field(description="Inputs whose memory an output took over.")
    ] = 0
    gathers: Annotated[Count, Field(description="Strided reads that needed a gather.")] = 0
    compiled_models: Annotated[
        Count, Field(description="Models that TRCOMP_COMPILE_MODELS compiled.")
    ] = 0
    samples: Annotated[Count, Field(description="Samples that the device loader handed over.")] = 0
    fallbacks: Annotated[
        dict[str, Count], Field(description="Operators that torch ran on the CPU: name to times.")
    ] = {}
    record_seconds: Annotated[
        Seconds, Field(description="The script itself, and recording its operations.")
    ] = 0.0
    sync_seconds: Annotated[
        Seconds, Field(description="Collecting graphs and starting their executables.")
    ] = 0.0
    compile_seconds: Annotated[Seconds, Field(description="Compiling, or loading instead.")] = 0.0
    run_seconds: Annotated[Seconds, Field(description="Waiting for the device.")] = 0.0
    input_wait_seconds: Annotated[Seconds, Field(description="Waiting for the loader.")] = 0.0
    first_step_seconds: Annotated[
        Seconds | None, Field(description="From the process's start to its first step's end.")
    ] = None
    steady_step_seconds: Annotated[
        Seconds | None, Field(description="The median step after the first fifth.")
    ] = None
    samples_per_step: Annotated[Number, Field(description="Samples by steps.")] = 0.0
    samples_per_second: Annotated[
        PerSecond | None, Field(description="Of this rank, in a steady step; a job's is the sum.")
    ] = None
    peak_rss_bytes: Annotated[
        Bytes | None, Field(description="The most memory that the process had.")
    ] = None
    new_graph_steps: Annotated[
        list[Count], Field(description="For each graph compiled or loaded, the steps before it.")
    ] = []
    varying: Annotated[
        list[Varying], Field(description="Graphs compiled for several shapes, and their inputs.")
    ] = []
    causes: Annotated[
        list[Cause], Field(description="What graphs were compiled for, by line of the script.")
    ] = []
    interruptions: Annotated[
        list[Interruption],
        Field(description="Values read within steps and operators on the CPU, by line."),
    ] = []
    versions: Annotated[
        dict[str, str], Field(description="Python's, and those of the packages in use.")
    ] = {}
    timeline: Annotated[
        Timeline | None,
        Field(
            description="Step times, compiles and memory over time, thinned out; of a job with "
            "more than 128 ranks in the reports of those that stand out."
        ),
    ] = None
    device: Annotated[
        str | None, Field(description="What the rank computes on, as its maker calls it.")
    ] = None
    profile: Annotated[
        Profile | None, Field(description="The trace of some steps, if the job asked for one.")
    ] = None


class _Variable(_Checked):
    name: str
    value: str | None
    reason: str


class HostEnvironment(_Checked):
    """What a host worked out for its first worker."""

    host: str
    rank: Count | None
    variables: list[_Variable]


def rank_report(text: bytes) -> dict[str, Any] | None:
    """A rank's report without what is damaged in it; None if it is none."""
    values: dict[str, Any] = _values(text)
    try:
        RankReport.model_validate(values)
    except ValidationError as error:
        damaged = {problem["loc"][0] if problem["loc"] else "rank" for problem in error.errors()}
        if "rank" in damaged:
            return None
        values = {name: value for name, value in values.items() if name not in damaged}
    return None if "variables" in values else values


def host_environment(text: bytes) -> dict[str, Any] | None:
    """What a host worked out; None if the text is something else."""
    values: dict[str, Any] = _values(text)
    try:
        HostEnvironment.model_validate(values)
    except ValidationError:
        return None
    return values


def _values(text: bytes) -> Any:
    try:
        # Stricter than Python's own: no lone surrogates, which no file could hold.
        return from_json(text)
    except ValueError:  # A worker was killed while it wrote.
        return None
