"""transformers' Trainer, changed as it is imported: what it evaluates is joined on the host.

The Trainer joins each batch's predictions to all earlier ones on the device. That is another shape,
and so another graph to compile, for each batch of an evaluation.
"""

from __future__ import annotations

from typing import Any

from trcomp.changes import when_imported


def _join_on_host(module: Any) -> None:
    container = module.EvalLoopContainer
    add, to_host = container.add, container.to_cpu_and_numpy

    def _add(self: Any, tensors: Any) -> None:
        if not self.do_nested_concat:
            add(self, tensors)
        elif self.tensors is None:
            self.tensors = [tensors]
        else:
            self.tensors.append(tensors)

    def _to_host(self: Any) -> None:
        if not self.do_nested_concat or self.tensors is None:
            to_host(self)
            return
        batches = [module.nested_numpify(batch) for batch in self.tensors]
        self.tensors = None
        if self.arrays is not None:
            batches.insert(0, self.arrays)
        while len(batches) > 1:  # Pairs: each element is copied a few times, not once a batch.
            pairs = zip(batches[::2], batches[1::2], strict=False)
            joined = [module.nested_concat(*pair, self.padding_index) for pair in pairs]
            batches = joined + batches[2 * len(joined) :]
        (self.arrays,) = batches

    container.add, container.to_cpu_and_numpy = _add, _to_host


def install() -> None:
    """Change transformers when it is imported."""
    when_imported({"transformers.trainer_pt_utils": _join_on_host})
