"""Each word of a job has its field in the request, each field its word, and the docs have both."""

from __future__ import annotations

from collections.abc import Iterator

from trcomp import JobSpec, limits
from trcomp.backends.sagemaker_fields import FIELDS, NOT_SENT
from trcomp.backends.sagemaker_request import SHAPE
from trcomp.inputs import REACHED
from trcomp.managed import NAMES

OF_ESTIMATOR = {"model_uri", "model_channel_name"}
"""Words that `JobSpec` takes and keeps in others."""


def leaves(shape: str, path: str = "") -> Iterator[str]:
    """Every field of a shape of SageMaker's API that is no structure; lists without their index."""
    model = limits._shapes()[shape]
    if model["type"] == "list":
        yield from leaves(model["member"]["shape"], path)
    elif model["type"] == "structure":
        for name, member in model["members"].items():
            yield from leaves(member["shape"], f"{path}.{name}" if path else name)
    else:
        yield path


def within(path: str, field: str) -> bool:
    return path == field or path.startswith(f"{field}.")


def test_every_word_has_a_row() -> None:
    words = {*NAMES, *JobSpec.model_fields, *OF_ESTIMATOR} - {"managed", "container"}
    assert {field.word for field in FIELDS} == words


def test_every_field_of_the_request_has_a_word_or_a_reason() -> None:
    fields = list(leaves(SHAPE))
    assert len(fields) > 80
    for path in fields:
        channel, _, inside = path.partition(".")
        if channel == "InputDataConfig":
            assert inside in REACHED, path
        elif any(within(path, field) for field in NOT_SENT):
            assert not any(within(path, field.path) for field in FIELDS), path
        else:
            assert any(within(path, field.path) for field in FIELDS), path


def test_what_has_a_reason_exists() -> None:
    fields = list(leaves(SHAPE))
    for field in NOT_SENT:
        assert any(within(path, field) for path in fields), field
    assert {path.partition(".")[2] for path in fields if within(path, "InputDataConfig")} == REACHED
