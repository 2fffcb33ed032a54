"""Which form `trcomp bench` tells people to use."""

from __future__ import annotations

import pytest

from trcomp.bench import Measured, advice, fastest, table
from trcomp.cli import main


def measured(eager: float, lazy: float, compiled: float) -> tuple[Measured, ...]:
    forms = {"eager": (eager, 1.0), "lazy": (lazy, 11.0), "compile": (compiled, 21.0)}
    return tuple(
        Measured(form, 30, step, first, compiles=0 if form == "eager" else 2)
        for form, (step, first) in forms.items()
    )


@pytest.mark.parametrize(
    ("times", "best"),
    [
        ((0.10, 0.20, 0.30), "eager"),
        ((0.20, 0.10, 0.30), "lazy"),
        ((0.30, 0.20, 0.10), "compile"),
        ((0.102, 0.100, 0.099), "eager"),
        ((0.200, 0.102, 0.100), "lazy"),
    ],
)
def test_the_fastest_form_or_a_simpler_one_that_is_as_fast(
    times: tuple[float, float, float], best: str
) -> None:
    found = fastest(measured(*times))
    assert found is not None
    assert found.form == best
    assert advice(measured(*times)).startswith(f"Use {best}: ")


def test_says_from_which_step_on_it_pays() -> None:
    # Ten seconds later at first, a tenth of a second a step won back.
    assert advice(measured(0.2, 0.1, 0.3)).endswith(
        "0.50x eager's time, which makes up for its first step after about 101 steps."
    )


def test_a_form_that_failed_is_not_recommended_and_says_why() -> None:
    eager, lazy, _ = measured(0.2, 0.1, 0.01)
    failed = Measured("compile", problem="failed: ValueError: no (`trcomp logs train-1`)")
    assert advice((eager, lazy, failed)).startswith("Use lazy")
    assert table((eager, lazy, failed))[-1] == f"compile       {failed.problem}"
    assert advice((failed, lazy)).startswith("Use lazy")


def test_a_script_without_steps_gets_a_hint() -> None:
    forms = [Measured("eager", 1, None, 2.0), Measured("lazy", 0), Measured("compile", 0)]
    assert fastest(forms) is None
    assert "--steps" in advice(forms)


def test_a_wrong_script_is_64_before_anything_starts(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRCOMP_HOME", str(tmp_path))
    assert main(["bench", "nope.py", "--env", "X", "--", "-x"]) == 64
    errors = capsys.readouterr().err
    assert "2 problems" in errors
    assert main(["bench", "nope.py", "--steps", "1"]) == 64
