"""LSTM, GRU and RNN layers kept whole: one node per layer and direction, with a loop inside it.

Step by step, a layer over a hundred time steps would be a thousand nodes and minutes to compile.

    aten::lstm(input, hx, params) ── per layer and direction ──> _Layer ──> trcomp::recurrent, 0
                                     its backward, of any order ──────────> trcomp::recurrent, 1 ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from trcomp.runtime import storage
from trcomp.runtime.device import DEVICE
from trcomp.runtime.dtypes import cast
from trcomp.runtime.ops.registry import find, lowers
from trcomp.runtime.precision import products_of
from trcomp.runtime.recording import record
from trcomp.runtime.whole import composed, is_real, keep_whole

Tensors = Sequence[torch.Tensor]


class Cell(NamedTuple):
    """What one time step computes.

    Attributes:
        kind: lstm, gru, rnn_tanh or rnn_relu.
        num_weights: Of them: input's, hidden's, with `has_biases` their biases; an odd one projects
            an LSTM's hidden state.
        has_biases: Whether there are biases.
        reverse: Whether time runs backwards.
    """

    kind: str
    num_weights: int
    has_biases: bool
    reverse: bool = False

    @property
    def num_states(self) -> int:
        """States carried from step to step: h, and c for an LSTM."""
        return 2 if self.kind == "lstm" else 1

    def counts(self, order: int) -> tuple[int, int]:
        """Number of operands and of results of the derivative of an order.

        A pull-back takes a gradient per result, then the operands; it gives one per operand.
        """
        operands, results = 1 + self.num_states + self.num_weights, 1 + self.num_states
        for _ in range(order):
            operands, results = results + operands, operands
        return operands, results


def _step(cell: Cell, weights: Sequence[Any], states: Sequence[Any], gates: Any) -> tuple[Any, ...]:
    """The next states; `gates`, (batch, gates * hidden), is the input's share."""
    hidden, *memory = states
    dtype = hidden.dtype
    recurrent = hidden @ weights[1].T
    if cell.has_biases:
        recurrent = recurrent + weights[3]
    wide = jnp.promote_types(dtype, np.float32)
    gates, recurrent = cast(gates, wide), cast(recurrent, wide)
    if cell.kind == "lstm":
        enter, forget, fresh, leave = jnp.split(gates + recurrent, 4, -1)
        kept = jax.nn.sigmoid(forget) * cast(memory[0], wide)
        new = kept + jax.nn.sigmoid(enter) * jnp.tanh(fresh)
        out = cast(jax.nn.sigmoid(leave) * jnp.tanh(new), dtype)
        return out @ weights[-1].T if cell.num_weights % 2 else out, cast(new, dtype)
    if cell.kind == "gru":
        inputs, shares = jnp.split(gates, 3, -1), jnp.split(recurrent, 3, -1)
        reset, update = (jax.nn.sigmoid(inputs[i] + shares[i]) for i in range(2))
        new = jnp.tanh(inputs[2] + reset * shares[2])
        return (cast(new + update * (cast(hidden, wide) - new), dtype),)
    activation = jnp.tanh if cell.kind == "rnn_tanh" else jax.nn.relu
    return (cast(activation(gates + recurrent), dtype),)


def _layer(cell: Cell, mask: Any, *operands: Any) -> tuple[Any, ...]:
    """The hidden state after every step, (time, batch, hidden), and the last states."""
    input, rest = operands[0], operands[1:]
    states, weights = rest[: cell.num_states], rest[cell.num_states :]
    gates = input @ weights[0].T
    if cell.has_biases:
        gates = gates + weights[2]

    def step(states: tuple[Any, ...], now: tuple[Any, Any]) -> tuple[tuple[Any, ...], Any]:
        share, present = now
        made = _step(cell, weights, states, share)
        if present is not None:
            # A sequence that has ended, or in reverse has yet to begin, keeps its states.
            pairs = zip(made, states, strict=True)
            made = tuple(jnp.where(present[:, None], new, old) for new, old in pairs)
        return made, made[0]

    if len(input) == 1:
        last, out = step(states, (gates[0], None if mask is None else mask[0]))
        return (out[None], *last)
    last, outs = lax.scan(step, states, (gates, mask), reverse=cell.reverse)
    return (outs, *last)


def _derivative(cell: Cell, order: int, mask: Any) -> Callable[..., tuple[Any, ...]]:
    """The layer; its pull-back for order 1; the pull-back of that for order 2; and so on.

    A pull-back computes the layer again: a loop's inner values are not kept from node to node.
    """
    if not order:
        return partial(_layer, cell, mask)
    inner = _derivative(cell, order - 1, mask)
    count = cell.counts(order - 1)[1]

    def pull_back(*operands: Any) -> tuple[Any, ...]:
        made: tuple[Any, ...] = jax.vjp(inner, *operands[count:])[1](operands[:count])
        return made

    return pull_back


@lowers("trcomp::recurrent")
@products_of("rnn")
def _recurrent(ctx: Any, cell: Cell, order: int, mask: Any, operands: tuple[Any, ...]) -> Any:
    return _derivative(cell, order, mask)(*operands)


class _Layer(torch.autograd.Function):
    """A layer in one direction, or a derivative of it, as one node."""

    @staticmethod
    def forward(
        ctx: Any, cell: Cell, order: int, mask: torch.Tensor | None, *operands: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.cell, ctx.order = cell, order
        ctx.save_for_backward(mask, *operands)
        if order:
            like = operands[cell.counts(order - 1)[1] :]
            sizes = [tuple(tensor.shape) for tensor in like]
        else:
            input, *states = operands[: 1 + cell.num_states]
            sizes = [tuple(state.shape) for state in states]
            sizes.insert(0, (input.shape[0], *sizes[0]))
        outputs = [storage.output(size, operands[0].dtype) for size in sizes]
        return tuple(record("trcomp::recurrent", (cell, order, mask, list(operands)), outputs))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        mask, *operands = ctx.saved_tensors
        made = _Layer.apply(ctx.cell, ctx.order + 1, mask, *grads, *operands)
        wanted = zip(made, ctx.needs_input_grad[3:], strict=True)
        return (None, None, None, *(grad if needed else None for grad, needed in wanted))


class Stack(NamedTuple):
    """Layers upon each other, each in one direction or two.

    Attributes:
        dropout: Probability with which an input of the second and further layers is dropped.
    """

    kind: str
    has_biases: bool
    num_layers: int
    dropout: float
    bidirectional: bool

    def run(
        self, input: torch.Tensor, hx: Tensors, params: Tensors, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        """The last layer's output and the last states of all layers.

        Args:
            input: (time, batch, features).
            hx: h, and c for an LSTM, each (layers * directions, batch, hidden).
            params: The weights of each layer and direction in turn.
            mask: (time, batch), whether a sequence has that step; None if all have.
        """
        directions = 2 if self.bidirectional else 1
        count = len(params) // (self.num_layers * directions)
        last: list[tuple[torch.Tensor, ...]] = []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                input = torch.dropout(input, self.dropout, True)
            outs = []
            for direction in range(directions):
                place = layer * directions + direction
                cell = Cell(self.kind, count, self.has_biases, reverse=direction == 1)
                weights = params[place * count : (place + 1) * count]
                out, *states = _Layer.apply(cell, 0, mask, input, *(s[place] for s in hx), *weights)
                outs.append(out)
                last.append(tuple(states))
            input = torch.cat(outs, -1) if self.bidirectional else outs[0]
        return (input, *(torch.stack(states) for states in zip(*last, strict=True)))


def _kept_whole(input: torch.Tensor, hx: Tensors, params: Tensors) -> bool:
    """Whether the node here covers the call; torch's composition takes or refuses the others."""
    operands = (input, *hx, *params)
    return (
        is_real(*operands)
        and all(tensor.dtype is input.dtype for tensor in operands)
        and input.is_floating_point()
        and input.shape[0] > 0
        and params[0].shape[-1] == input.shape[-1]
        and params[1].shape[-1] == hx[0].shape[-1]
    )


def _over_padded(kind: str) -> tuple[Any, Callable[..., Any]]:
    """The operator over (time, batch, features), and its kernel."""
    op = find(f"{kind}.input")

    def kernel(
        input: torch.Tensor,
        hx: Any,
        params: Tensors,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        states = hx if kind == "lstm" else [hx]
        turned = input.transpose(0, 1) if batch_first and input.dim() == 3 else input
        fits = input.dim() == 3 and all(state.shape[1] == turned.shape[1] for state in states)
        if not fits or not _kept_whole(turned, states, params):
            settings = (has_biases, num_layers, dropout, train, bidirectional, batch_first)
            return composed(op, input, hx, params, *settings)
        stack = Stack(kind, has_biases, num_layers, dropout if train else 0.0, bidirectional)
        out, *last = stack.run(turned, states, params, None)
        return (out.transpose(0, 1) if batch_first else out, *last)

    return op, kernel


def _over_packed(kind: str) -> tuple[Any, Callable[..., Any]]:
    """The operator over a packed batch, and its kernel: padded, masked, and packed again."""
    op = find(f"{kind}.data")

    def kernel(
        data: torch.Tensor,
        batch_sizes: torch.Tensor,
        hx: Any,
        params: Tensors,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> Any:
        states = hx if kind == "lstm" else [hx]
        fits = all(state.shape[1] == int(batch_sizes[0]) for state in states)
        if not fits or not _kept_whole(data, states, params):
            settings = (has_biases, num_layers, dropout, train, bidirectional)
            return composed(op, data, batch_sizes, hx, params, *settings)
        sizes = batch_sizes.cpu()
        # Which rows are there, (time, batch), and the row of `data` that each of them is.
        present = torch.arange(int(sizes[0])) < sizes[:, None]
        rows = (present.flatten().cumsum(0) - 1).to(DEVICE)
        places = present.flatten().nonzero().flatten().to(DEVICE)
        padded = data.index_select(0, rows).unflatten(0, present.shape)
        stack = Stack(kind, has_biases, num_layers, dropout if train else 0.0, bidirectional)
        out, *last = stack.run(padded, states, params, present.to(DEVICE))
        return (out.flatten(0, 1).index_select(0, places), *last)

    return op, kernel


def _over_one_step(kind: str) -> tuple[Any, Callable[..., Any]]:
    """The operator of one time step, (batch, features), and its kernel."""
    op = find(f"{kind}_cell")

    def kernel(
        input: torch.Tensor,
        hx: Any,
        w_ih: torch.Tensor,
        w_hh: torch.Tensor,
        b_ih: torch.Tensor | None = None,
        b_hh: torch.Tensor | None = None,
    ) -> Any:
        states = hx if kind == "lstm" else [hx]
        biases = [bias for bias in (b_ih, b_hh) if bias is not None]
        weights = [w_ih, w_hh, *biases]
        fits = len(biases) != 1 and all(len(state) == len(input) for state in states)
        if not fits or not _kept_whole(input, states, weights):
            return composed(op, input, hx, w_ih, w_hh, b_ih, b_hh)
        cell = Cell(kind, len(weights), bool(biases))
        _, *last = _Layer.apply(cell, 0, None, input.unsqueeze(0), *states, *weights)
        return tuple(last) if kind == "lstm" else last[0]

    return op, kernel


for _kind in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
    for _op, _kernel in (_over_padded(_kind), _over_packed(_kind), _over_one_step(_kind)):
        keep_whole(_op, _kernel)
