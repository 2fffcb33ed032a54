"""The table of docs/sagemaker.md is as the code is, and has every word."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from trcomp import JobSpec
from trcomp.backends.sagemaker_request import FIELDS
from trcomp.managed import NAMES

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("sagemaker_page", DOCS / "sagemaker.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = (DOCS / "sagemaker.md").read_text(encoding="utf-8")
    assert module.page(text) == text, "run `python -m docs.sagemaker`"


def test_every_word_has_a_row() -> None:
    assert {field.word for field in FIELDS} == {*NAMES, *JobSpec.model_fields} - {"managed"}
