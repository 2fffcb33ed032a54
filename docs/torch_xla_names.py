"""Writes the page of torch_xla's names: python -m docs.torch_xla_names

The names are torch_xla 2.9's, in `torch-xla-names.txt`; what becomes of each is asked of the tree.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import trcomp.compat

HERE = Path(__file__).parent
PAGE = HERE / "torch-xla.md"
NAMES = HERE / "torch-xla-names.txt"

_HEAD = """\
# The names of torch_xla

<!-- Written by docs/torch_xla_names.py from the tree; do not edit. -->

In a worker `import torch_xla` finds trcomp's module tree. It has the public names of torch_xla 2.9:
{supported} are supported, {alias} of them as old spellings of others, and {refused} are out of
scope. Those can be imported, and say why when they are used. A real torch_xla that is installed
goes before the tree, and the worker says so. [From torch_xla](from-torch-xla.md) is the guide,
[torch_xla's own tests](torch-xla-tests.md) the yardstick.
"""

_OLDER = {
    "torch_xla.amp": ["GradScaler"],
    "torch_xla.core.xla_model": ["get_ordinal", "xrt_world_size"],
    "torch_xla.runtime": ["using_pjrt"],
}
"""Names that scripts of 1.11 to 2.8 use and 2.9 has no more."""


def names() -> dict[str, list[str]]:
    """Module to its public names in torch_xla 2.9."""
    text = re.sub(r"^#.*\n", "", NAMES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = text.replace("\n  ", " ").splitlines()
    return {module: listed.split() for module, _, listed in (line.partition(":") for line in lines)}


def state(module: ModuleType, name: str) -> tuple[str, str]:
    """What becomes of a name (supported, alias, refused or missing), and a note in words."""
    found = getattr(module, name, None)
    if found is None and not hasattr(module, name):
        return "missing", ""
    why = getattr(found, "__refused__", None)
    if why is not None:
        return "refused", f"{why[0].upper()}{why[1:]}."
    new = getattr(found, "__replaced_by__", None)
    if new is not None:
        return "alias", f"Use `{new}`." if "(" in new else f"{new[0].upper()}{new[1:]}."
    return "supported", _summary(module, found)


def _summary(module: ModuleType, found: Any) -> str:
    """The first sentence of what the tree says of a function or class."""
    if not (inspect.isfunction(found) or inspect.isclass(found)):
        return ""
    if not found.__module__.startswith("torch_xla"):
        return f"`{found.__module__}.{found.__qualname__}`."
    paragraph = (inspect.getdoc(found) or "").partition("\n\n")[0].replace("\n", " ")
    return paragraph.replace("|", "\\|")


def page() -> str:
    """All names, by module; modules that are out of scope as a whole in a table of their own."""
    trcomp.compat.install()
    counts = {"supported": 0, "alias": 0, "refused": 0, "missing": 0}
    sections: list[str] = []
    refused: list[str] = ["## Out of scope", "", "| module | names | reason |", "|---|---|---|"]
    for module_name, listed in names().items():
        module = importlib.import_module(module_name)
        rows = [(name, *state(module, name)) for name in listed]
        for _, found, _ in rows:
            counts[found] += 1
        if all(found == "refused" for _, found, _ in rows):
            refused.append(f"| `{module_name}` | {len(rows)} | {rows[0][2]} |")
            continue
        sections += [f"## {module_name}", "", "| name | | |", "|---|---|---|"]
        sections += [f"| `{name}` | {found} | {note} |" for name, found, note in rows]
        sections.append("")
    counts["supported"] += counts["alias"]
    older = ["## Of older releases", "", "| name | | |", "|---|---|---|"]
    for module_name, listed in _OLDER.items():
        module = importlib.import_module(module_name)
        older += [f"| `{module_name}.{n}` | {' | '.join(state(module, n))} |" for n in listed]
    return "\n".join([_HEAD.format(**counts), *sections, *older, "", *refused, ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
