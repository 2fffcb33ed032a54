"""TRCOMP_EAGER and TRCOMP_CHECK find the operator that is to blame."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.runtime


def _run(script: str, **flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=os.environ | flags,
        capture_output=True,
        text=True,
        timeout=100,
    )


TRAIN = """
    import torch
    import trcomp.runtime as rt

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
        torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Dropout(0.1),
        torch.nn.Linear(64, 8), torch.nn.LayerNorm(8), torch.nn.GELU(),
    ).to("xla")
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(4, 3, 8, 8).to("xla")
    for i in range(2):
        out = model(x)
        with torch.autocast("xla", torch.bfloat16, enabled=i == 1):
            torch.nn.functional.cross_entropy(model(x), torch.tensor([0, 1, 2, 3]).to("xla"))
        turned = out.reshape(2, 2, 8).transpose(0, 1).flatten(0, 1).as_strided((2, 2), (8, 1), 1)
        assert turned.sum().isfinite()
        attended = torch.nn.functional.scaled_dot_product_attention(out[None], out[None], out[None])
        loss = torch.nn.functional.cross_entropy(attended[0], torch.tensor([0, 1, 2, 3]).to("xla"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rt.sync()
    print("executions", rt.metrics()["executions"])
    print("fallbacks", rt.metrics()["fallbacks"])
"""


@pytest.mark.parametrize("flag", ["TRCOMP_EAGER", "TRCOMP_CHECK"])
def test_a_training_step_runs_operator_by_operator(flag: str) -> None:
    made = _run(TRAIN, **{flag: "1"})
    assert made.returncode == 0, made.stderr
    lines = dict(line.split(" ", 1) for line in made.stdout.splitlines())
    assert int(lines["executions"]) > 50
    assert lines["fallbacks"] == "{}"


WRONG = """
    import torch
    import trcomp.runtime as rt
    from trcomp.runtime.ops.registry import RULES

    rule = RULES["tanh"]
    object.__setattr__(rule, "lower", lambda ctx, self: {formula})
    x = torch.ones(2, 3).to("xla")
    y = (x * 2).tanh()
    z = y.sum()
    print(z.item())
"""


def test_check_names_the_operator_whose_numbers_are_wrong() -> None:
    script = WRONG.format(formula="self + 1")
    assert _run(script).returncode == 0
    made = _run(script, TRCOMP_CHECK="1")
    assert (
        "result 0 of aten.tanh.default differs from torch's on the CPU: values, in 6 of 6 "
        "elements; at [0, 0] 3 instead of 0.964028 (of float32[2, 3])" in made.stderr
    )
    assert "line 9, in <module>" in made.stderr
    assert "anomaly" not in made.stderr


def test_check_sees_what_is_written_in_place_and_points_into_backward() -> None:
    script = """
    import sys
    import torch
    import trcomp.runtime as rt
    from trcomp.runtime.ops.registry import RULES

    def spoil(name, lower):
        object.__setattr__(RULES[name], "lower", lower)

    {spoiled}
    weight = torch.nn.Parameter(torch.ones(2, 3).to("xla"))
    weight.tanh().sum().backward()
    torch.optim.SGD([weight], lr=0.1).step()
    """
    writes = script.format(spoiled='spoil("_foreach_add.List", lambda ctx, x, *rest, **k: list(x))')
    made = _run(writes, TRCOMP_CHECK="1")
    assert "of aten._foreach_add_.List differs" in made.stderr, made.stderr
    derives = script.format(spoiled='spoil("tanh_backward", lambda ctx, grad, result: grad)')
    made = _run(derives, TRCOMP_CHECK="1")
    assert "of aten.tanh_backward.default differs" in made.stderr, made.stderr
    assert "set_detect_anomaly(True)" in made.stderr


def test_eager_puts_a_failure_at_the_line_that_made_it() -> None:
    script = WRONG.format(formula="self.no_such_thing")
    late, early = _run(script), _run(script, TRCOMP_EAGER="1")
    assert late.returncode == early.returncode == 1
    assert "line 11, in <module>" in late.stderr
    assert "line 9, in <module>" in early.stderr
    for made in (late, early):
        assert "while lowering tanh" in made.stderr.splitlines()[-1]
