"""The pages that come from the code are as the code is."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def script(name: str) -> Any:
    """A module of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"{name}_page", DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = script("generate")


@pytest.mark.parametrize("name", sorted(generate.PAGES))
def test_page_is_up_to_date(name: str) -> None:
    expected = generate.PAGES[name]()
    assert (DOCS / name).read_text(encoding="utf-8") == expected, "run `make docs`"


@pytest.mark.parametrize(
    ("name", "writer"),
    [
        ("environment", "environment"),
        ("sagemaker", "sagemaker"),
        ("iam", "sagemaker"),
        ("doctor", "doctor"),
    ],
)
def test_tables_in_a_page_are_up_to_date(name: str, writer: str) -> None:
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert "<!-- begin" in text
    assert script(writer).page(text) == text, f"run `python -m docs.{writer}`"
