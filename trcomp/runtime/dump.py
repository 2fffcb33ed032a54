"""Each compiled graph as files, in a job with `TrainingCompilerConfig(debug=True)`.

They lie in output/data/compiler, where SageMaker Training Compiler put its own, and so end up in
output.tar.gz.
"""

from __future__ import annotations

from typing import Any

from trcomp.runtime import output, own_rank
from trcomp.runtime.bodies import text
from trcomp.runtime.graph import Graph


def write(graph: Graph, number: int, lowered: Any, compiled: Any) -> None:
    """Write one graph: as recorded, as handed to XLA, and as XLA optimised it.

    Args:
        graph: As recorded.
        number: Which compile of this process it is, from 0.
        lowered: jax's lowered program.
        compiled: jax's compiled program.
    """
    folder = output.folder("compiler")
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"rank-{own_rank.identity().rank}-graph-{number}"
    (folder / f"{stem}.txt").write_text(f"{text(graph)}\n", encoding="utf-8")
    (folder / f"{stem}.stablehlo.txt").write_text(lowered.as_text(), encoding="utf-8")
    (folder / f"{stem}.hlo.txt").write_text(compiled.as_text() or "", encoding="utf-8")
