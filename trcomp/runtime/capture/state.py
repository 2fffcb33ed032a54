"""The Python objects that a function can reach, as they are now: to compare, and to put back.

    closure, globals, self ──walk──> containers, tensors, facts by path ──> what differs, in words

A fact is what a captured step depends on at one place: a number, a mode, which tensor it is and how
it is laid out. Objects of the script and of libraries are walked alike; globals, those of the
script's own functions alone.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from trcomp.runtime.capture import facts
from trcomp.runtime.capture.code import (
    is_plain,
    is_script,
    is_script_class,
    is_script_module,
    slots_of,
)
from trcomp.runtime.capture.facts import CannotWatchError
from trcomp.runtime.device import is_on_device

_ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_CLOSED = (
    *("logging", "threading", "_thread", "concurrent", "_io", "io", "jax", "jaxlib"),
    *("weakref", "re", "enum", "inspect"),
)
"""Packages whose objects have nothing that a step computes with."""
_MODULES_DICTS = ("_modules", "_parameters", "_buffers")
_NOT_OF_A_STEP = ("_non_persistent_buffers_set",)
"""Attributes of modules that saving alone looks at, besides hooks of `state_dict`."""
_MOST_OBJECTS = 100_000


class Slot(NamedTuple):
    """A place that holds a tensor: an entry of a container, or an attribute."""

    holder: Any
    key: Any

    def get(self) -> Any:
        """What lies there."""
        return self.holder.grad if self.key is _GRAD else self.holder[self.key]

    def put(self, value: Any) -> None:
        """Have something lie there."""
        if self.key is _GRAD:
            self.holder.grad = value
        else:
            self.holder[self.key] = value


_GRAD = object()


class State:
    """What some objects can reach.

    Attributes:
        facts: By path, in the order of the walk.
        slots: The place of each fact that is a tensor which a call may replace.
        tensors: On the device, each once, but for gradients.
        gradients: The leaves that may have some.
        host_tensors: Each once.
        groups: Optimizers' parameter groups, whose floats are no facts.
        codes: Of the script's functions that were found.
    """

    def __init__(self, roots: Iterable[tuple[str, Any]], extra: Iterable[Any] = ()) -> None:
        self.facts: dict[str, Hashable] = {}
        self.slots: dict[str, Slot] = {}
        self.tensors: list[torch.Tensor] = []
        self.paths: list[str] = []
        self.gradients: list[torch.Tensor] = []
        self.gradient_paths: set[str] = set()
        self.host_tensors: list[tuple[str, torch.Tensor]] = []
        self.generators: list[tuple[str, torch.Generator]] = []
        self.groups: list[tuple[str, dict[str, Any]]] = []
        self.codes: set[types.CodeType] = set()
        self.dicts: list[dict[Any, Any]] = []
        self.modules: list[dict[str, Any]] = []
        """Attributes of modules."""
        self.hooks: list[dict[Any, Any]] = []
        """Modules' dicts of hooks."""
        self._of_hooks: set[int] = set()
        self.lists: list[Any] = []
        self.sets: list[Any] = []
        self.slotted: list[tuple[Any, tuple[str, ...]]] = []
        self.classes: list[type] = []
        self.arrays: list[Any] = []
        self.cells: list[Any] = []
        self.names: list[tuple[dict[str, Any], str]] = []
        self._seen: dict[int, Any] = {}
        """By address; alive, so that no other object gets it."""
        self._plain: list[tuple[str, dict[str, Any], set[str]]] = []
        """Objects whose attributes only the script's functions use, and those seen so far."""
        self._queue: deque[tuple[str, Any, Slot | None]] = deque()
        for path, value in roots:
            self._see(path, value)
        for function in extra:
            self._see_code(*function)
        while self._queue:
            self._visit(*self._queue.popleft())
            if len(self._seen) > _MOST_OBJECTS:
                raise CannotWatchError(f"it can reach more than {_MOST_OBJECTS} objects")
            if not self._queue:
                self._see_named_attributes()

    def difference(self, other: State) -> tuple[str, str] | None:
        """Where another state differs first, if it does: the path, and what was and is there."""
        for path, fact in self.facts.items():
            now = other.facts.get(path, "gone")
            if now != fact:
                return path, facts.change(fact, now)
        for path, fact in other.facts.items():
            if path not in self.facts:
                return path, f"is new: {facts.words(fact)}"
        return None

    def differing(self, other: State) -> Iterator[str]:
        """Every path at which another state differs."""
        for path in self.facts.keys() | other.facts.keys():
            if self.facts.get(path, _MISSING) != other.facts.get(path, _MISSING):
                yield path

    def _see(self, path: str, value: Any, slot: Slot | None = None) -> None:
        if isinstance(value, _ATOMS):
            self.facts[path] = (type(value).__name__, value if value == value else "nan")
        else:
            self._queue.append((path, value, slot))

    def _visit(self, path: str, value: Any, slot: Slot | None) -> None:
        if isinstance(value, torch.Tensor):
            self.facts[path] = facts.of_tensor(value)
            if slot is not None:
                self.slots[path] = slot
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        for kind, visit in _VISITS:
            if isinstance(value, kind):
                visit(self, path, value)
                return
        self._visit_object(path, value)

    def _visit_tensor(self, path: str, value: torch.Tensor) -> None:
        if is_traceable_wrapper_subclass(value):
            raise CannotWatchError(f"{path} is a {type(value).__name__}, a tensor of its own kind")
        if not is_on_device(value):
            self.host_tensors.append((path, value))
            return
        if value.grad_fn is not None:
            raise CannotWatchError(f"{path} is a tensor with a history: detach it")
        self.tensors.append(value)
        self.paths.append(path)
        if value.requires_grad:
            self.gradients.append(value)
            self.facts[f"{path}.grad"] = facts.of_gradient(value.grad)
            self.slots[f"{path}.grad"] = Slot(value, _GRAD)
            self.gradient_paths.add(f"{path}.grad")
        for hooks in (value._backward_hooks, getattr(value, "_post_accumulate_grad_hooks", None)):
            if hooks:
                self._see(f"{path}'s hooks", hooks)

    def _visit_dict(self, path: str, value: dict[Any, Any]) -> None:
        (self.hooks if id(value) in self._of_hooks else self.dicts).append(value)
        if len(value):
            self.facts[path] = ("keys", *map(_name, value))
        for i, (key, item) in enumerate(list(value.items())):
            if not isinstance(key, _ATOMS):
                self._see(f"{path}'s key {i}", key)
            name = repr(key) if isinstance(key, _ATOMS) else f"<{i}>"
            self._see(f"{path}[{name}]", item, Slot(value, key))

    def _visit_list(self, path: str, value: Any) -> None:
        self.lists.append(value)
        self.facts[path] = ("length", len(value))
        for i, item in enumerate(value):
            self._see(f"{path}[{i}]", item, Slot(value, i))

    def _visit_tuple(self, path: str, value: tuple[Any, ...]) -> None:
        self.facts[path] = ("length", len(value))
        for i, item in enumerate(value):
            self._see(f"{path}[{i}]", item)

    def _visit_set(self, path: str, value: Any) -> None:
        self.sets.append(value)
        self.facts[path] = ("set", *sorted(map(_name, value)))
        for i, item in enumerate(value):
            self._see(f"{path}'s item {i}", item)

    def _visit_function(self, path: str, value: types.FunctionType) -> None:
        self.facts[path] = ("function", value.__code__)
        names = value.__code__.co_freevars
        for name, cell in zip(names, value.__closure__ or (), strict=True):
            self._see_cell(name if "." not in path else f"{path}'s {name}", cell)
        for i, default in enumerate(value.__defaults__ or ()):
            self._see(f"{path}'s default {i}", default)
        for name, default in (value.__kwdefaults__ or {}).items():
            self._see(f"{path}'s {name}", default)
        if value.__dict__:
            self._see(f"{path}.__dict__", value.__dict__)
        self._see_code(value.__code__, value.__globals__)

    def _see_cell(self, path: str, cell: Any) -> None:
        if id(cell) not in self._seen:
            self._seen[id(cell)] = cell
            self.cells.append(cell)
        try:
            self._see(path, cell.cell_contents)
        except ValueError:
            self.facts[path] = "unset"

    def _see_code(self, code: types.CodeType, names: dict[str, Any]) -> None:
        """What a function of the script reads of its module."""
        if code in self.codes or not is_script(code):
            return
        self.codes.add(code)
        for name in code.co_names:
            if name in names:
                self.names.append((names, name))
                self._see(name, names[name])
                if isinstance(names[name], types.ModuleType):
                    self._see_module(name, names[name], code)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._see_code(constant, names)

    def _see_module(self, path: str, module: types.ModuleType, code: types.CodeType) -> None:
        if not is_script_module(module):
            return
        for name in code.co_names:
            if name in vars(module):
                found = vars(module)[name]
                self.names.append((vars(module), name))
                self._see(f"{path}.{name}", found)
                if isinstance(found, types.ModuleType) and found is not module:
                    self._see_module(f"{path}.{name}", found, code)

    def _visit_method(self, path: str, value: types.MethodType) -> None:
        self._see(f"{path}.__func__", value.__func__)
        self._see(path.rpartition(".")[0] or f"{path}.__self__", value.__self__)

    def _visit_partial(self, path: str, value: functools.partial[Any]) -> None:
        for name, part in (("func", value.func), ("args", value.args), ("kw", value.keywords)):
            self._see(f"{path}.{name}", part)

    def _visit_reference(self, path: str, value: Any) -> None:
        self._see(f"{path}()", value())

    def _visit_generator(self, path: str, value: torch.Generator) -> None:
        self.generators.append((path, value))

    def _visit_class(self, path: str, value: type) -> None:
        self.facts[path] = ("class", value.__qualname__, id(value))
        if not is_script_class(value):
            return
        self.classes.append(value)
        for name, item in list(vars(value).items()):
            if not (name.startswith("__") and name.endswith("__") and name != "__call__"):
                plain = getattr(item, "__func__", getattr(item, "fget", item))
                self._see(f"{value.__name__}.{name}", plain)
        for base in filter(is_script_class, value.__bases__):
            self._see(f"{base.__module__}.{base.__qualname__}", base)

    def _visit_object(self, path: str, value: Any) -> None:
        kind = type(value)
        package = kind.__module__.partition(".")[0]
        self.facts[path] = ("object", kind.__qualname__)
        if isinstance(value, (types.ModuleType, types.BuiltinFunctionType)) or package in _CLOSED:
            self.facts[path] = ("object", kind.__qualname__, id(value))
            return
        if hasattr(kind, "__next__"):
            raise CannotWatchError(f"{path} is an iterator: what it gives next cannot be known")
        if package == "trcomp":  # Such as a captured step; what it wraps may be the script's.
            if hasattr(value, "__wrapped__"):
                self._see(path, value.__wrapped__)
            return
        if package == "numpy" and hasattr(value, "tobytes"):
            if value.nbytes > 1 << 16:
                raise CannotWatchError(f"{path} is an array of {value.nbytes} bytes on the host")
            self.arrays.append(value)
            self.facts[path] = ("array", value.tobytes())
            return
        if is_script_class(kind):
            self._see(f"{kind.__module__}.{kind.__qualname__}", kind)
        attributes = getattr(value, "__dict__", None)
        if type(attributes) is dict:
            self._visit_attributes(path, value, attributes)
        slots = tuple(slots_of(kind))
        if slots:
            self.slotted.append((value, slots))
            for name in slots:
                self._see(f"{path}.{name}", getattr(value, name, None))

    def _visit_attributes(self, path: str, value: Any, attributes: dict[str, Any]) -> None:
        self._seen[id(attributes)] = attributes
        if is_plain(type(value)) and not self._uses_any_name():
            self._plain.append((path, attributes, set()))
            return
        if isinstance(value, torch.nn.Module):
            self.modules.append(attributes)
            self._of_hooks.update(id(attributes.get(name)) for name in HOOKS)
        else:
            self.dicts.append(attributes)
        self.facts[f"{path}.__dict__"] = ("attributes", *attributes)
        for name, item in list(attributes.items()):
            if name in _NOT_OF_A_STEP or "state_dict" in name:
                continue
            if name in _MODULES_DICTS and isinstance(value, torch.nn.Module):
                self._see_children(path, item)
            elif name == "param_groups" and isinstance(value, torch.optim.Optimizer):
                self._see_groups(f"{path}.{name}", item)
            else:
                self._see(f"{path}.{name}", item, Slot(attributes, name))

    def _uses_any_name(self) -> bool:
        """Whether a function of the script uses attributes by names that are not in its code."""
        return any(not _BY_ANY_NAME.isdisjoint(code.co_names) for code in self.codes)

    def _see_named_attributes(self) -> None:
        """Of plain objects, the attributes that some function found so far names."""
        named = {name for code in self.codes for name in code.co_names}
        for path, attributes, seen in self._plain:
            for name in attributes if self._uses_any_name() else sorted(named & attributes.keys()):
                if name not in seen:
                    seen.add(name)
                    self.names.append((attributes, name))
                    self._see(f"{path}.{name}", attributes[name], Slot(attributes, name))

    def _see_children(self, path: str, children: dict[str, Any]) -> None:
        self._seen[id(children)] = children
        self.dicts.append(children)
        for name, item in list(children.items()):
            self._see(f"{path}.{name}", item, Slot(children, name))

    def _see_groups(self, path: str, groups: list[dict[str, Any]]) -> None:
        """An optimizer's groups: floats, and tuples of them, are numbers of a call."""
        self.lists.append(groups)
        self.facts[path] = ("length", len(groups))
        for i, group in enumerate(groups):
            self.groups.append((f"{path}[{i}]", group))
            self.facts[f"{path}[{i}]"] = ("keys", *sorted(group))
            for name, item in group.items():
                if not is_number(item):
                    self._see(f"{path}[{i}][{name!r}]", item)
                else:
                    self.facts[f"{path}[{i}][{name!r}]"] = ("numbers", _form(item))


HOOKS = frozenset(name for name in vars(torch.nn.Module()) if "hooks" in name)
"""A module's own dicts of hooks."""
_MISSING = object()
_BY_ANY_NAME = frozenset(("getattr", "vars", "__dict__", "attrgetter", "eval", "exec"))
_VISITS: tuple[tuple[Any, Callable[[State, str, Any], None]], ...] = (
    (torch.Tensor, State._visit_tensor),
    (dict, State._visit_dict),
    ((list, deque), State._visit_list),
    (tuple, State._visit_tuple),
    ((set, frozenset), State._visit_set),
    (types.FunctionType, State._visit_function),
    (types.MethodType, State._visit_method),
    (functools.partial, State._visit_partial),
    (weakref.ReferenceType, State._visit_reference),
    (torch.Generator, State._visit_generator),
    (type, State._visit_class),
)


def numbered(group: dict[str, Any]) -> list[tuple[str, Any]]:
    """The entries of a parameter group that are numbers of a call, in one order."""
    return [(name, group[name]) for name in sorted(group) if is_number(group[name])]


def is_number(item: Any) -> bool:
    """Whether an entry of a parameter group is a number of a call, or a tuple of them."""
    if isinstance(item, tuple):
        return bool(item) and all(isinstance(part, float) for part in item)
    return isinstance(item, float)


def _form(item: Any) -> Hashable:
    return len(item) if isinstance(item, tuple) else "float"


def _name(key: Any) -> str:
    return repr(key) if isinstance(key, _ATOMS) else type(key).__name__
