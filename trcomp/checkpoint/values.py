"""Values of a checkpoint: from the devices to the host, and back to where tensors are sharded."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch

from trcomp.errors import Problem, SpecError

_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, type(None))


class HostCopy:
    """Copies of values on the host, private, so that training may go on; what is shared stays so.

    Every rank makes one: where tensors are sharded, putting them together takes all ranks.

    Args:
        whole: Whether sharded tensors are put together; else each rank's own part is taken.
        keeps: Whether this rank wants the values at all.
    """

    def __init__(self, *, whole: bool, keeps: bool) -> None:
        self._whole = whole
        self._keeps = keeps
        self._made: dict[tuple[Any, ...], tuple[torch.Tensor, torch.Tensor]] = {}
        """By their places: tensors, which keep these from others, and their copies."""

    def of(self, value: Any, name: str) -> Any:
        """The copy of a state.

        Args:
            value: Tensors, numbers and text in dicts, lists and tuples.
            name: What it is, for the error.

        Raises:
            SpecError: It holds something that could not be loaded safely.
        """
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, Mapping):
            return self._mapping(value, name)
        if type(value) in (list, tuple, set):
            return type(value)(self.of(item, f"{name}[...]") for item in value)
        if type(value) in _PLAIN:
            return value
        if type(value).__module__ == "numpy" and hasattr(value, "item") and not value.shape:
            return value.item()
        allowed = "tensors, numbers, text, and dicts, lists and tuples of them can be saved."
        raise SpecError([Problem(name, type(value).__name__, allowed)])

    def _mapping(self, value: Mapping[Any, Any], name: str) -> dict[Any, Any]:
        items = {key: self.of(item, f"{name}[{key!r}]") for key, item in value.items()}
        if not isinstance(value, OrderedDict):
            return items
        ordered = OrderedDict(items)
        vars(ordered).update(vars(value))  # The versions of a module's classes.
        return ordered

    def _tensor(self, tensor: torch.Tensor) -> Any:
        tensor = tensor.detach()
        if is_sharded(tensor):
            sharded: Any = tensor
            # On all ranks, wanted or not: what one reads, the others take part in.
            copy = _on_host(sharded.full_tensor() if self._whole else sharded.to_local())
            return copy if self._keeps else None
        if not self._keeps:
            return None
        place = tensor.untyped_storage()._cdata, tensor.storage_offset()
        key = (*place, tensor.size(), tensor.stride(), tensor.dtype)
        if key not in self._made:
            self._made[key] = tensor, _on_host(tensor)
        return self._made[key][1]


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A private copy."""
    return tensor.clone() if tensor.device.type == "cpu" else tensor.cpu()


def is_sharded(value: Any) -> bool:
    """Whether it is a DTensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def for_loading(thing: Any, saved: Any, *, whole: bool) -> Any:
    """A saved state as the thing's `load_state_dict` takes it: sharded as the thing is now.

    Args:
        thing: A module, an optimizer, or something else, whose state has no sharded tensors.
        saved: Its state.
        whole: Whether sharded tensors were put together for saving.
    """
    if "torch.distributed.tensor" not in sys.modules:
        return saved
    if isinstance(thing, torch.nn.Module):
        now = thing.state_dict()
        for key, value in saved.items():
            saved[key] = _placed(value, now.get(key), whole)
        return saved
    if not isinstance(thing, torch.optim.Optimizer):
        return saved
    parameters = [one for group in thing.param_groups for one in group["params"]]
    state = {
        index: {key: _placed(value, parameters[index], whole) for key, value in entry.items()}
        for index, entry in saved["state"].items()
    }
    return {**saved, "state": state}


def _placed(value: Any, like: Any, whole: bool) -> Any:
    if not isinstance(value, torch.Tensor) or not is_sharded(like):
        return value
    if value.shape != (like.shape if whole else like.to_local().shape):
        return value  # A count of steps.
    tensors = sys.modules["torch.distributed.tensor"]
    value = value.to(like.device)
    if whole:
        return tensors.distribute_tensor(value, like.device_mesh, like.placements)
    shape = {"shape": like.shape, "stride": like.stride()}
    return tensors.DTensor.from_local(value, like.device_mesh, like.placements, **shape)
