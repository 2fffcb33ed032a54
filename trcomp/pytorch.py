"""PyTorch: SageMaker SDK v2's spelling of an estimator for PyTorch scripts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trcomp.config import TrainingCompilerConfig
from trcomp.estimator import Estimator

__all__ = ["PyTorch", "TrainingCompilerConfig"]


class PyTorch(Estimator):
    """`Estimator`, its words in the order of SageMaker's SDK v2.

    With a compiler_config and without image_uri, versions choose one of the Training Compiler's own
    images, which are frozen. Elsewhere they choose nothing, and a warning says so.

    Args:
        entry_point: The script.
        framework_version: A version of PyTorch.
        py_version: A version of Python.
        source_dir: The directory of the script and all it needs.
        hyperparameters: Reach the script as ``--name value``.
        image_uri: The container image of a job in SageMaker.
        distribution: Which ranks are started; see `Estimator`.
        compiler_config: One worker per device runs the script through XLA.
        words: Any other word of `Estimator`.

    Raises:
        SpecError: Holds every problem of all these words at once.
    """

    def __init__(
        self,
        entry_point: str | Path | None = None,
        framework_version: str | None = None,
        py_version: str | None = None,
        source_dir: str | Path | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        image_uri: str | None = None,
        distribution: Mapping[str, Any] | None = None,
        compiler_config: TrainingCompilerConfig | None = None,
        **words: Any,
    ) -> None:
        super().__init__(
            entry_point,
            source_dir,
            hyperparameters=hyperparameters,
            distribution=distribution,
            compiler_config=compiler_config,
            **given(
                words,
                framework_version=framework_version,
                py_version=py_version,
                image_uri=image_uri,
            ),
        )


def given(words: Mapping[str, Any], **others: Any) -> dict[str, Any]:
    """Words, and those of others that are not None."""
    return {**words, **{name: value for name, value in others.items() if value is not None}}
