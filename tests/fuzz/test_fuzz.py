"""A slice of the fuzzing, by hypothesis, which makes what it finds small; `make fuzz` is all."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.draws import Draw
from tests.fuzz.targets import NEEDS_JAX, TARGETS, Target


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(t, marks=[pytest.mark.runtime] if t.name in NEEDS_JAX else [], id=t.name)
        for t in TARGETS
    ],
)
def test_damaged_input_ends_well_or_with_a_clean_error(target: Target, tmp_path: Path) -> None:
    @settings(max_examples=100, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def run(data: st.DataObject) -> None:
        target.case(Draw(lambda count: data.draw(st.integers(0, count - 1))), tmp_path)

    run()
