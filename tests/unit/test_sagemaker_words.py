"""Each word of a job has its field in the request, and its row in docs/sagemaker.md."""

from __future__ import annotations

from trcomp import JobSpec
from trcomp.backends.sagemaker_request import FIELDS
from trcomp.managed import NAMES


def test_every_word_has_a_row() -> None:
    assert {field.word for field in FIELDS} == {*NAMES, *JobSpec.model_fields} - {"managed"}
