"""TrainingCompilerConfig and distribution."""

from __future__ import annotations

from typing import Any

import pytest

from trcomp import SpecError, TrainingCompilerConfig
from trcomp.config import distribution_problems


def test_bool_is_enabled() -> None:
    assert TrainingCompilerConfig()
    assert not TrainingCompilerConfig(enabled=False)


def test_values_must_be_bools_and_all_are_named() -> None:
    with pytest.raises(SpecError, match="2 problems"):
        TrainingCompilerConfig(enabled="yes", debug=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, {}, {"pytorchxla": {"enabled": False}}])
def test_what_distribution_takes(value: Any) -> None:
    assert distribution_problems(value) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"pytorchXLA": {"enabled": True}}, "Did you mean 'pytorchxla'?"),
        ({"pytorchxla": {"enable": True}}, "Did you mean 'enabled'?"),
        ({"pytorchxla": {"enabled": "true"}}, "True or False"),
        ({"pytorchxla": True}, "is needed"),
        ({"smdistributed": {"dataparallel": {"enabled": True}}}, "not supported yet"),
        ("pytorchxla", "is needed"),
    ],
)
def test_what_distribution_refuses(value: object, text: str) -> None:
    (problem,) = distribution_problems(value)
    assert text in str(problem)
