"""PyTorch's own samples of every operator agree with the CPU; `make opinfo` runs them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.runtime.opinfo import verdicts
from tests.runtime.opinfo_failures import FAILING, ON_THE_CPU, is_listed
from tests.runtime.verdicts import Verdict
from trcomp.runtime import dispatch

pytestmark = [pytest.mark.runtime, pytest.mark.usefixtures("quick_compiles")]

PAGE = Path(__file__).parents[2] / "docs" / "ops.md"
NUM_SHARDS = 8

ELSEWHERE = [
    *((torch.float32, check) for check in ("gradient", "in-place", "out", "error")),
    *((dtype, "forward") for dtype in (torch.bfloat16, torch.int64, torch.bool, torch.complex64)),
]
"""(dtype, check) of which every `EVERY`-th operator is tried here, each time others."""
EVERY = 6


def wrong(found: list[Verdict]) -> list[str]:
    """What differs and is not listed."""
    return [
        f"{v.op} {v.dtype} {v.check} sample {v.sample}: {v.problem}"
        for v in found
        if v.problem is not None and not is_listed(v.op, v.check, v.dtype)
    ]


def unlisted_fallbacks(found: list[Verdict]) -> dict[str, set[str]]:
    """Operators that the CPU computed although they are not listed, by the sample's operator."""
    served = {
        v.op: {n for n in v.fallbacks if not {n, n.split(".")[0]} & ON_THE_CPU} for v in found
    }
    return {op: names for op, names in served.items() if names}


@pytest.mark.parametrize("shard", range(NUM_SHARDS))
def test_samples_agree_with_the_cpu(shard: int) -> None:
    found = list(verdicts(op_db[shard::NUM_SHARDS], [torch.float32], ["forward"], limit=2))
    assert wrong(found) == []
    assert unlisted_fallbacks(found) == {}


@pytest.mark.parametrize(("dtype", "check"), ELSEWHERE)
def test_other_checks_and_dtypes_agree(dtype: torch.dtype, check: str) -> None:
    first = ELSEWHERE.index((dtype, check)) % EVERY
    found = list(verdicts(op_db[first::EVERY], [dtype], [check], limit=1))
    assert wrong(found) == []
    assert unlisted_fallbacks(found) == {}


def test_what_is_listed_fails() -> None:
    listed = {op for op, _ in FAILING if is_listed(op, "forward", "float32")}
    chosen = [op for op in op_db if op.full_name in listed]
    found = verdicts(chosen, [torch.float32], ["forward"])
    assert {v.op for v in found if v.problem is not None} == listed


def test_the_list_names_operators_that_exist() -> None:
    assert {op.full_name for op in op_db} >= {op for op, _ in FAILING}


def test_the_page_has_every_operator_and_the_list() -> None:
    text = PAGE.read_text(encoding="utf-8")
    if f"torch {torch.__version__}" not in text:
        pytest.skip("the page was written with another torch, which has other operators")
    states = dict(re.findall(r"^\| `([^`]+)` \| (\w+) \|", text, re.MULTILINE))
    assert states.keys() == {op.full_name for op in op_db}
    failing = {op for op, state in states.items() if state == "failing"}
    listed = {op: reason for (op, check), reason in FAILING.items() if check != "error"}
    assert {op for op, reason in listed.items() if reason.everywhere} <= failing <= set(listed)


def test_no_kernel_hides_a_derivative() -> None:
    """What torch composes of other operators gets its derivative from them: leave it composed."""
    hidden = [
        name
        for name in dispatch.registered()
        if has_kernel(name, "CompositeImplicitAutograd")
        and not (has_kernel(name, "Autograd") or has_kernel(name, f"Autograd{dispatch.KEY}"))
    ]
    assert hidden == []


def has_kernel(name: str, key: str) -> bool:
    """Whether an aten operator has a kernel of its own under a dispatch key."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key)
