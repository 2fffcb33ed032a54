"""The tables of docs/environment.md are as the code is."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("environment", DOCS / "environment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = (DOCS / "environment.md").read_text(encoding="utf-8")
    assert module.page(text) == text, "run `python -m docs.environment`"
