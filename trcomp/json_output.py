"""How commands print JSON: one option, one form."""

from __future__ import annotations

import json
from typing import Any

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
"""Gives a command the argument `as_json`."""


def print_json(values: Any) -> None:
    """Print values, indented."""
    click.echo(json.dumps(values, indent=2))
