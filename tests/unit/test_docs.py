"""The pages that come from the code are as the code is."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
_spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
assert _spec is not None
assert _spec.loader is not None
generate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generate)


@pytest.mark.parametrize("name", sorted(generate.PAGES))
def test_page_is_up_to_date(name: str) -> None:
    expected = generate.PAGES[name]()
    assert (DOCS / name).read_text(encoding="utf-8") == expected, "run `make docs`"
