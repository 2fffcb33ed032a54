"""Lets a script written for CUDA run on the device: `cuda` is this process's device.

placement    "cuda" in factories, .to, .cuda(), contexts     names       what .device shows
functions    torch.cuda.*                                    types       torch.cuda.FloatTensor
autocast     torch.autocast("cuda")                          saving      checkpoints
boundaries   where a step ends                               spawning    one rank per device
refusals     CUDA graphs, kernels
"""

from __future__ import annotations

from trcomp.compat.cuda.installation import install

__all__ = ["install"]
