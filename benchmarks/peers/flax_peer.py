"""flax and optax on the CPU: … -m benchmarks.peers.flax_peer MODEL"""

from __future__ import annotations

from functools import partial
from typing import Any

import flax
import jax
import optax

from benchmarks.peers.flax_models import MODELS
from benchmarks.peers.serving import serve


class Flax:
    """The whole step as one function under `jax.jit`, its old state donated."""

    def __init__(self, name: str) -> None:
        self.versions = {"jax": jax.__version__, "flax": flax.__version__}
        model = MODELS[name]
        key = jax.random.key(0)
        self.batch = model.batch(key)
        variables = dict(jax.jit(model.module.init)(key, self.batch[0]))
        params, rest = variables.pop("params"), variables
        # torch's AdamW has this decay, optax's a hundredth of it.
        optimizer = optax.adamw(1e-4, weight_decay=0.01)
        self.state = params, rest, optimizer.init(params)
        self.num_parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
        self.loss: Any = None

        @partial(jax.jit, donate_argnums=0)
        def step(state: Any, inputs: jax.Array, labels: jax.Array) -> tuple[Any, jax.Array]:
            params, rest, moments = state

            def loss_of(params: Any) -> tuple[jax.Array, Any]:
                mutable = list(rest)
                made, after = model.module.apply(
                    {"params": params, **rest}, inputs, mutable=mutable
                )
                return model.loss(made, labels), after

            (loss, after), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
            updates, moments = optimizer.update(gradients, moments, params)
            return (optax.apply_updates(params, updates), after, moments), loss

        self.run = step

    def step(self) -> jax.Array:
        """Start a step; there is no part of the script's own."""
        self.state, loss = self.run(self.state, *self.batch)
        return loss

    def start(self) -> None:
        """It is started."""

    def finish(self, loss: jax.Array) -> None:
        """Wait for the device."""
        jax.block_until_ready((self.state, loss))

    def value(self, loss: jax.Array) -> float:
        """A loss as a number."""
        return float(loss)

    def counts(self) -> dict[str, int | None]:
        """Executables of the step."""
        return {"compiles": self.run._cache_size(), "operations": None}


if __name__ == "__main__":
    serve(Flax)
