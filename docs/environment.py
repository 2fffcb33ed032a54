"""Writes the tables in environment.md from the code: python -m docs.environment"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from trcomp.env import explain
from trcomp.env.explain import Row
from trcomp.env.variables import DIALECTS

PAGE = Path(__file__).with_name("environment.md")


def page(text: str) -> str:
    """The page with its tables as the code has them now."""
    for name, row in _rows().items():
        section = f"<!-- begin {name} -->\n{explain.markdown(row)}\n<!-- end {name} -->"
        pattern = rf"<!-- begin {name} -->\n.*?<!-- end {name} -->"
        text, count = re.subn(pattern, lambda _, new=section: new, text, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"{PAGE.name}: got {count} sections {name!r}; one is needed")
    return text


def _rows() -> dict[str, Row]:
    gpu = explain.table(instance_count=2, num_devices=8, efa=True, num_cpus=96)[9]
    cpu = explain.table(
        instance_count=1, num_devices=2, device_kind="cpu", num_cpus=8, network_interface="lo"
    )[1]
    xrt = explain.table(instance_count=2, num_devices=8, efa=True, num_cpus=96, dialects=DIALECTS)
    shown = {variable.name for variable in gpu.variables}
    only = tuple(variable for variable in xrt[9].variables if variable.name not in shown)
    return {"gpu": gpu, "cpu": cpu, "xrt": replace(xrt[9], variables=only)}


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
