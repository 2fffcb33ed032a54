"""How tests of the runtime may compile."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="module")
def quick_compiles() -> Iterator[None]:
    """Compile without LLVM's costly passes: for tests whose graphs run a few times each."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
