"""A trace whose device operations say what of the script they are: scope, line, XLA's own name.

XLA's optimizer keeps for each instruction the scope and the line that it was told of; a trace names
instructions. The executable's text leads from one to the other.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_TABLE_ROW = re.compile(r"(\d+) (?:\"(.*)\"|\{(.*)\})")
_FIELD = re.compile(r"(\w+)=(\d+)")
_INSTRUCTION = re.compile(r"\s*(?:ROOT )?%?([\w.\-]+) = .*?metadata=\{(.*?)\}")
_NAME = re.compile(r'op_name="(.*?)"')
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")


class Place(NamedTuple):
    """What an instruction is of.

    Attributes:
        scope: The script's names and modules around it, and the operator.
        source: The script's line, empty if none is known.
    """

    scope: str
    source: str


_executables: dict[str, Any] = {}
"""jax's compiled programs by their modules' names."""


def note(program: str, compiled: Any) -> None:
    """Remember an executable by its program's name: a trace may come to name its instructions."""
    _executables[f"jit_{program}"] = compiled


def write_trace(source: Path, target: Path, rank: int) -> None:
    """Write a trace of jax's profiler for Perfetto, with the places of its instructions.

    Args:
        source: jax's ``.trace.json.gz``.
        target: The file to write.
        rank: Whose trace it is: traces of several ranks can be opened together.
    """
    with gzip.open(source, "rt", encoding="utf-8") as stream:
        trace = json.load(stream)
    # Perfetto does not take the metadata that jax adds.
    trace.pop("metadata", None)
    known: dict[str, dict[str, Place]] = {}
    for event in trace["traceEvents"]:
        given = event.get("args", {})
        if event.get("name") == "process_name":
            given["name"] = f"rank {rank} {given['name']}"
        module = str(given.get("hlo_module", "")).partition("(")[0]
        if module in _executables and module not in known:
            known[module] = places(_executables[module].as_text() or "")
        place = known.get(module, {}).get(given.get("hlo_op", ""))
        if place is not None:
            given |= {"scope": place.scope, "source": place.source}
            if event["name"] != given["hlo_op"]:
                given["kernel"] = event["name"]
            if place.scope:
                event["name"] = place.scope
    with gzip.open(target, "wt", encoding="utf-8") as stream:
        json.dump(trace, stream)


def places(text: str) -> dict[str, Place]:
    """The place of each instruction of an executable, as far as XLA kept it.

    Args:
        text: As `Compiled.as_text` gives it.
    """
    tables = _tables(text)
    found = {}
    for line in text.splitlines():
        match = _INSTRUCTION.match(line)
        name = _NAME.search(match[2]) if match else None
        if match and name:
            scope = "/".join(name[1].split("/")[1:-1])
            found[match[1]] = Place(scope, _source(dict(_FIELD.findall(match[2])), tables))
    return found


def _source(metadata: dict[str, str], tables: dict[str, dict[str, Any]]) -> str:
    frame = tables["StackFrames"].get(metadata.get("stack_frame_id", ""), {})
    location = tables["FileLocations"].get(frame.get("file_location_id", ""), {})
    file = tables["FileNames"].get(location.get("file_name_id", ""))
    return f"{file}:{location['line']}" if file else ""


def _tables(text: str) -> dict[str, dict[str, Any]]:
    """Of each table of an HLO text its rows, by their numbers."""
    tables: dict[str, dict[str, Any]] = {name: {} for name in _TABLES}
    for name, row in _rows(text):
        number, quoted, fields = row.groups()
        tables[name][number] = quoted if fields is None else dict(_FIELD.findall(fields))
    return tables


def _rows(text: str) -> Iterator[tuple[str, re.Match[str]]]:
    current = ""
    for line in text.splitlines():
        row = _TABLE_ROW.fullmatch(line)
        if line in _TABLES:
            current = line
        elif row and current:
            yield current, row
        elif line:
            current = ""
