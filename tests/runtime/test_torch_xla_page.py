"""The page of torch_xla's names is as the tree is, and no name is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import torch_xla_names

pytestmark = pytest.mark.runtime


@pytest.fixture(scope="module")
def page() -> str:
    return torch_xla_names.page()


def test_the_page_is_up_to_date(page: str) -> None:
    committed: Path = torch_xla_names.PAGE
    assert committed.read_text(encoding="utf-8") == page, "run `python -m docs.torch_xla_names`"


def test_every_name_of_torch_xla_is_there_or_refused_with_a_reason(page: str) -> None:
    assert "| missing |" not in page
    assert len(torch_xla_names.names()) > 70
