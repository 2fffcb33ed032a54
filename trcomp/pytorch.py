"""PyTorch: SageMaker SDK v2's spelling of an estimator for PyTorch scripts."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trcomp.config import TrainingCompilerConfig
from trcomp.estimator import Estimator

__all__ = ["PyTorch", "TrainingCompilerConfig"]


class PyTorch(Estimator):
    """`Estimator`, taking also the versions by which SDK v2 chooses an image.

    trcomp chooses none: a job runs with what its image has, or this machine. A warning says so.

    Args:
        entry_point: The script.
        framework_version: A version of PyTorch.
        py_version: A version of Python.
        source_dir: The directory of the script and all it needs.
        hyperparameters: Reach the script as ``--name value``.
        image_uri: The container image of a job in SageMaker.
        distribution: None or ``{"pytorchxla": {"enabled": True}}``.
        compiler_config: One worker per device runs the script through XLA.
        words: Any other word of `Estimator`.

    Raises:
        SpecError: Holds every problem of all these words at once.
    """

    def __init__(
        self,
        entry_point: str | Path,
        framework_version: str | None = None,
        py_version: str | None = None,
        source_dir: str | Path | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        image_uri: str | None = None,
        distribution: Mapping[str, Mapping[str, bool]] | None = None,
        compiler_config: TrainingCompilerConfig | None = None,
        **words: Any,
    ) -> None:
        if image_uri is not None:
            words["image_uri"] = image_uri
        super().__init__(
            entry_point,
            source_dir,
            hyperparameters=hyperparameters,
            distribution=distribution,
            compiler_config=compiler_config,
            **words,
        )
        tell_versions({"framework_version": framework_version, "py_version": py_version})


def tell_versions(versions: Mapping[str, str | None]) -> None:
    """Warn that versions choose no image, if any are given."""
    given = ", ".join(f"{name}={value!r}" for name, value in versions.items() if value is not None)
    if given:
        text = f"{given}: no image is chosen by it; the job runs with what its image has."
        warnings.warn(text, stacklevel=3)
