"""Writes the pages that come from the code: python -m docs.generate"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from trcomp import errors, flags
from trcomp.cli import cli

HERE = Path(__file__).parent
_NOTE = "<!-- Written by docs/generate.py from the code; do not edit. -->\n"


def errors_page() -> str:
    """Every exception, its exit code and its place in the tree."""
    tree = inspect.getdoc(errors) or ""
    lines = ["# Errors", "", _NOTE, "```", tree.partition("\n\n")[2], "```", ""]
    for name, kind in sorted(vars(errors).items()):
        if isinstance(kind, type) and issubclass(kind, errors.TrcompError):
            own = kind in {errors.JobFailedError, errors.RankFailedError}
            code = "the script's own" if own else kind.exit_code
            lines += [f"## {name}", "", f"Exit code: {code}.", "", inspect.getdoc(kind) or "", ""]
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


PAGES = {"errors.md": errors_page, "flags.md": flags_page, "cli.md": cli_page}


def main() -> None:
    """Write every page beside this file."""
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
