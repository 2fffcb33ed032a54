"""Names that are spelt in one file only."""

from __future__ import annotations

import re
from pathlib import Path

import trcomp

PACKAGE = Path(trcomp.__file__).parent
OWNERS = {
    r"""["']SM_[A-Z]""": {"contract.py"},
    r"""["']TRCOMP_[A-Z]""": {"flags.py"},
    r"""["'](RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE)["']""": {"env/variables.py"},
}


def test_names_are_spelt_in_the_file_that_owns_them() -> None:
    strays = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for pattern, owners in OWNERS.items()
        if re.search(pattern, line) and path.relative_to(PACKAGE).as_posix() not in owners
    ]
    assert strays == []


def test_nothing_is_started_through_a_shell() -> None:
    shell = re.compile(r"shell\s*=\s*True|os\.(system|popen)\(|getoutput|create_subprocess_shell")
    found = [str(path) for path in PACKAGE.rglob("*.py") if shell.search(path.read_text())]
    assert found == []


def test_every_module_says_what_it_makes() -> None:
    silent = [
        str(path.relative_to(PACKAGE))
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.read_text().strip() and not path.read_text().startswith('"""')
    ]
    assert silent == []
