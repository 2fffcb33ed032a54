"""A call's arguments: what a captured step depends on in them, and what differs, in words."""

from __future__ import annotations

import inspect
from collections import UserDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import (
    MappingKey,
    TreeSpec,
    keystr,
    register_pytree_node,
    tree_flatten,
    tree_flatten_with_path,
    tree_unflatten,
)

from trcomp.runtime.recording import is_device_tensor

_VALUES = (type(None), bool, int, complex, str, bytes)
_MODES = (
    "grad mode",
    "inference mode",
    "autocast",
    "autocast on the CPU",
    "autocast's cache",
    "the default dtype",
    "the default device",
    "deterministic algorithms",
    "anomaly detection",
    "the precision of matrix products",
)


class _Opened:
    """A user dictionary, such as transformers' BatchEncoding, which torch would not take apart."""

    def __init__(self, whole: UserDict[Any, Any]) -> None:
        self.whole = whole


@dataclass(frozen=True)
class _Shell:
    """A user dictionary without its values; its other attributes are those of each call."""

    kind: type[UserDict[Any, Any]]
    keys: tuple[Hashable, ...]
    attributes: dict[str, Any] = field(compare=False)


def _shell_of(opened: _Opened) -> tuple[list[Any], _Shell]:
    whole = opened.whole
    rest = {name: value for name, value in vars(whole).items() if name != "data"}
    return list(whole.data.values()), _Shell(type(whole), tuple(whole.data), rest)


def _filled(values: Iterable[Any], shell: _Shell) -> UserDict[Any, Any]:
    whole = shell.kind.__new__(shell.kind)
    whole.data = dict(zip(shell.keys, values, strict=True))
    vars(whole).update(shell.attributes)
    return whole


def _named_values(opened: _Opened) -> tuple[list[tuple[Any, Any]], _Shell]:
    values, shell = _shell_of(opened)
    return list(zip(map(MappingKey, shell.keys), values, strict=True)), shell


register_pytree_node(_Opened, _shell_of, _filled, flatten_with_keys_fn=_named_values)


def flatten(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], TreeSpec]:
    """A call's leaves, and its form, with which `tree_unflatten` makes args and kwargs of them."""
    return tree_flatten(
        (tuple(map(_opened, args)), {name: _opened(value) for name, value in kwargs.items()})
    )


def _opened(argument: Any) -> Any:
    return _Opened(argument) if isinstance(argument, UserDict) else argument


def key_of(leaves: Sequence[Any]) -> tuple[Hashable, ...]:
    """What a step depends on in its arguments; floats may differ, and what tensors hold."""
    key: list[Hashable] = []
    storages: list[int] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if is_device_tensor(leaf):
                storages.append(leaf.untyped_storage()._cdata)
                marks = leaf.is_conj() or leaf.is_neg()
            else:
                marks = True
            key.append((leaf.size(), leaf.stride(), leaf.dtype, leaf.requires_grad, marks))
        elif type(leaf) is float:
            key.append(float)
        elif isinstance(leaf, _VALUES):
            key.append((type(leaf), leaf))
        else:
            key.append(id(leaf))
    if len(set(storages)) < len(storages):
        key += map(storages.index, storages)
    return tuple(key)


def names_of(function: Callable[..., Any], form: TreeSpec) -> list[str]:
    """What the leaves of a call are called in the function's own words."""
    numbered = tree_unflatten(list(range(form.num_leaves)), form)
    args, kwargs = numbered
    try:
        bound = inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        bound = {"arguments": args, **kwargs}
    names = ["an argument"] * form.num_leaves
    named = {name: _opened(value) for name, value in bound.items()}
    for path, leaf in tree_flatten_with_path(named)[0]:
        if type(leaf) is int and leaf < len(names):
            names[leaf] = keystr(path).removeprefix("['").replace("']", "", 1)
    return names


def unreplayable(leaves: Sequence[Any], names: Sequence[str]) -> str | None:
    """Which argument keeps a step from being captured, and why, if one does."""
    for name, leaf in zip(names, leaves, strict=True):
        if not isinstance(leaf, torch.Tensor):
            continue
        if not is_device_tensor(leaf):
            return f"{name} is a tensor on the CPU; move it to the device before the call"
        if leaf.requires_grad:
            return f"{name} takes part in autograd; detach it before the call"
        if leaf.is_conj() or leaf.is_neg():
            return f"{name} is a conjugated or negated view; pass its clone()"
    return None


def change_of_arguments(last: Any, now: Any, names: Sequence[str]) -> str:
    """The first thing in which two calls differ: what, old and new."""
    (old_key, old_form, old_modes), (key, form, modes) = last, now
    if old_form != form:
        return "the arguments are of another form"
    for name, old, new in zip(names, old_key, key, strict=False):
        if old != new:
            return f"{name} was {_words(old)} and is {_words(new)}"
    for name, old, new in zip(_MODES, old_modes, modes, strict=False):
        if old != new:
            return f"{name} was {old} and is {new}"
    return "a mode of torch's differs" if old_modes != modes else "arguments share other memory"


def _words(key: Any) -> str:
    if key is float:
        return "a float"
    if isinstance(key, int):
        return "an object"
    if len(key) == 2:
        return repr(key[1])
    size, stride, dtype, requires_grad, _ = key
    strides = f" with strides {list(stride)}" if stride and stride[-1] != 1 else ""
    grad = ", requires_grad" if requires_grad else ""
    return f"{str(dtype).removeprefix('torch.')}{list(size)}{strides}{grad}"
