"""TrainingCompilerConfig and distribution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trcomp import SpecError, TrainingCompilerConfig
from trcomp.config import distribution_problems


def test_bool_is_enabled() -> None:
    assert TrainingCompilerConfig()
    assert not TrainingCompilerConfig(enabled=False)


def test_values_must_be_bools_and_all_are_named() -> None:
    with pytest.raises(SpecError, match="3 problems"):
        TrainingCompilerConfig(enabled="yes", debug=1, cuda_to_xla="cuda")  # type: ignore[arg-type]


@pytest.mark.parametrize("cache", [None, "off", "~/executables", Path("here")])
def test_executables_may_be_kept_in_a_directory(cache: str | Path | None) -> None:
    assert TrainingCompilerConfig(cache=cache).cache == cache


@pytest.mark.parametrize("cache", ["", 3, True, "s3://bucket/prefix"])
def test_what_cannot_be_a_directory_is_refused(cache: Any) -> None:
    with pytest.raises(SpecError, match=r"compiler_config\.cache"):
        TrainingCompilerConfig(cache=cache)


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
