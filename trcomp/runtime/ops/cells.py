"""The fused cells that torch composes recurrent layers of, where a layer is not kept whole."""

from __future__ import annotations

import torch

from trcomp.runtime.dispatch import implements

Maybe = torch.Tensor | None


def _sum(*tensors: Maybe) -> torch.Tensor:
    first, *rest = [tensor for tensor in tensors if tensor is not None]
    for tensor in rest:
        first = first + tensor
    return first


@implements("_thnn_fused_lstm_cell")
def lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: Maybe = None,
    hidden_bias: Maybe = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The next hidden state and cell, and the gates `(batch, 4 * hidden)` for the gradient."""
    gates = _sum(input_gates, hidden_gates, input_bias, hidden_bias)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


@implements("_thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(
    grad_hy: Maybe,
    grad_cy: Maybe,
    cx: torch.Tensor,
    cy: torch.Tensor,
    workspace: torch.Tensor,
    has_bias: bool,
) -> tuple[torch.Tensor, torch.Tensor, Maybe]:
    """Gradients of the gates, the cell before, and the bias."""
    i, f, g, o = workspace.chunk(4, 1)
    squashed = cy.tanh()
    into_hidden = torch.zeros_like(cy) if grad_hy is None else grad_hy
    into_cell = _sum(into_hidden * o * (1 - squashed**2), grad_cy)
    gates = torch.cat(
        [
            into_cell * g * i * (1 - i),
            into_cell * cx * f * (1 - f),
            into_cell * i * (1 - g**2),
            into_hidden * squashed * o * (1 - o),
        ],
        1,
    )
    return gates, into_cell * f, gates.sum(0) if has_bias else None


@implements("_thnn_fused_gru_cell")
def gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: Maybe = None,
    hidden_bias: Maybe = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The next hidden state, and what its gradient needs: `(batch, 5 * hidden)`."""
    from_input = _sum(input_gates, input_bias).chunk(3, 1)
    from_hidden = _sum(hidden_gates, hidden_bias).chunk(3, 1)
    r = (from_input[0] + from_hidden[0]).sigmoid()
    z = (from_input[1] + from_hidden[1]).sigmoid()
    n = (from_input[2] + r * from_hidden[2]).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, from_hidden[2]], 1)


@implements("_thnn_fused_gru_cell_backward")
def gru_cell_backward(
    grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Maybe, Maybe]:
    """Gradients of both gates, the hidden state before, and both biases."""
    r, z, n, hx, hidden = workspace.chunk(5, 1)
    into_new = grad_hy * (1 - z) * (1 - n**2)
    into_reset = into_new * hidden * r * (1 - r)
    into_update = grad_hy * (hx - n) * z * (1 - z)
    from_input = torch.cat([into_reset, into_update, into_new], 1)
    from_hidden = torch.cat([into_reset, into_update, into_new * r], 1)
    biases = (from_input.sum(0), from_hidden.sum(0)) if has_bias else (None, None)
    return from_input, from_hidden, grad_hy * z, *biases
