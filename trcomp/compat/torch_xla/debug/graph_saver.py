"""`save_tensors_graph`: the graph of pending tensors as a file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from .. import _XLAC

_numbers: Counter[str] = Counter()


def save_tensors_graph(
    save_dir: str | os.PathLike[str], name: str, tensors: Sequence[torch.Tensor]
) -> None:
    """Write the graph of pending tensors to `<save_dir>/<name>-<number>.<form>`.

    The variable SAVE_GRAPH_FMT says in which form: text (as recorded) or hlo.

    Raises:
        ValueError: Another form, or nothing is pending.
    """
    form = os.environ.get("SAVE_GRAPH_FMT", "text")
    forms = {"text": _XLAC._get_xla_tensors_text, "hlo": _XLAC._get_xla_tensors_hlo}
    if form not in forms:
        raise ValueError(f"got SAVE_GRAPH_FMT={form!r}; allowed: {', '.join(forms)}.")
    text = forms[form](tensors)
    path = Path(save_dir) / f"{name}-{_numbers[name]}.{form}"
    path.write_text(text, encoding="utf-8")
    _numbers[name] += 1
