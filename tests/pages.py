"""The fenced blocks of the project's pages, and how a page's Python is run as one program."""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TORCH = re.compile(r"^(?:import|from) (?:torch|trcomp\.runtime)\b", re.MULTILINE)
_EXCERPT = re.compile(r"<!-- from (\S+) -->\s*$")


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        page: The page, relative to the project's root.
        line: Where its code begins.
        language: What stands behind the opening fence.
        text: Its lines.
        excerpt: The file that its lines are from, if the comment before it names one.
        output: The text block right behind it: what the code prints, with "..." for anything.
            None if there is none: what is printed does not matter then.
    """

    page: str
    line: int
    language: str
    text: str
    excerpt: str | None
    output: str | None


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    fences = list(_FENCE.finditer(text))
    found = []
    for fence, following in zip_longest(fences, fences[1:]):
        excerpt = _EXCERPT.search(text[: fence.start()])
        is_output = (
            following is not None
            and following[1] == "text"
            and not text[fence.end() : following.start()].strip()
        )
        found.append(
            Block(
                page=page.relative_to(ROOT).as_posix(),
                line=text[: fence.start(2)].count("\n") + 1,
                language=fence[1],
                text=fence[2],
                excerpt=excerpt[1] if excerpt else None,
                output=following[2] if following is not None and is_output else None,
            )
        )
    return found


def programs(*, need: str | None) -> dict[str, list[Block]]:
    """The Python of each page, by the page's path, excerpts left out.

    Args:
        need: "torch": the pages that use it. "job": of all pages, the blocks that ask for a job
            that has run. None: what is left, which the launcher alone can run.
    """
    found = {}
    for page in PAGES:
        code = [b for b in blocks(page) if b.language == "python" and b.excerpt is None]
        for_jobs = [block for block in code if "Job.attach(" in block.text]
        others = [block for block in code if block not in for_jobs]
        needed = "torch" if any(_TORCH.search(block.text) for block in others) else None
        chosen = for_jobs if need == "job" else others if need == needed else []
        if chosen:
            found[page.relative_to(ROOT).as_posix()] = chosen
    return found


def commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Each command of a page's shell blocks: its line as written, and its words."""
    for block in blocks(page):
        if block.language == "sh":
            for line in block.text.replace("\\\n", " ").splitlines():
                if words := shlex.split(line, comments=True):
                    yield line, words


def run(program: Sequence[Block], names: Mapping[str, str]) -> None:
    """Execute blocks in one namespace and compare what they print with what the page says.

    Args:
        program: Blocks of one page, in order.
        names: What this run has instead of what the page shows: text to text, as printed to as
            shown.

    Raises:
        AssertionError: The page shows another output.
    """
    space: dict[str, Any] = {"__name__": "__page__"}
    for block in program:
        printed = io.StringIO()
        # Line numbers of a traceback are then those of the page.
        code = compile("\n" * (block.line - 1) + block.text, block.page, "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, space)
        shown = printed.getvalue()
        for actual, name in names.items():
            shown = shown.replace(actual, name)
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        due = shown if block.output is None else block.output
        agrees = doctest.OutputChecker().check_output(due, shown, flags)
        assert agrees, f"{block.page}:{block.line} prints:\n{shown}"
