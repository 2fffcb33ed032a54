"""`trcomp.step`: a training step, captured once as a whole and replayed as one node of the graph.

    call ──a captured form fits──> replay: one node
      └────none does──> try the function apart ──understood──> another form, replayed
                              └──────────────────not──> the function runs, recorded as ever

Nothing of a call depends on luck: what a form was captured with is compared at each call, and what
cannot be compared is not captured.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar, overload

import torch
from torch.utils._pytree import TreeSpec, tree_unflatten

from trcomp.runtime import ir, overdue
from trcomp.runtime.capture.arguments import (
    change_of_arguments,
    flatten,
    key_of,
    names_of,
    unreplayable,
)
from trcomp.runtime.capture.guards import modes
from trcomp.runtime.capture.replay import CapturedStep
from trcomp.runtime.capture.trial import Subject, try_twice
from trcomp.runtime.metrics import counters
from trcomp.runtime.placeholders import CannotCaptureError
from trcomp.runtime.recording import is_device_tensor

F = TypeVar("F", bound=Callable[..., Any])
_ATTEMPTS = 3
"""Of one form: first steps do what later ones do not, such as making an optimizer's state."""
_FAILURES = 3
"""Forms that could not be captured, before no more is tried."""


_GLOBAL_HOOKS = tuple(
    value
    for name in ("torch.nn.modules.module", "torch.optim.optimizer")
    for word, value in vars(sys.modules[name]).items()
    if word.startswith("_global") and isinstance(value, dict)
)


class StepFunction:
    """A function that is captured where it can be.

    Args:
        function: A training step.
        max_captures: Forms that it may have; in further ones it is recorded.
        tells: Whether to say on stderr why it is captured again or not at all.
    """

    def __init__(
        self, function: Callable[..., Any], max_captures: int = 8, tells: bool = True
    ) -> None:
        self._function = function
        self._max = max_captures
        self._tells = tells
        self._forms: list[CapturedStep] = []
        """The one used last comes first."""
        self._last: tuple[Hashable, Subject] | None = None
        self._refused: Counter[Hashable] = Counter()
        self._num_calls = 0
        self._told: set[str] = set()
        self._functions: dict[Any, dict[str, Any]] = {}
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step, or replay it."""
        if not _may_replay():
            return self._function(*args, **kwargs)
        self._num_calls += 1
        leaves, form = flatten(args, kwargs)
        if self._num_calls == 1:
            return self._function(*args, **kwargs)
        key = (key_of(leaves), form, modes())
        given = _at_start(leaves)
        for place, captured in enumerate(self._forms):
            if captured.key == key and captured.fits(given):
                registers = captured.play(given)
                if registers is not None:
                    self._forms.insert(0, self._forms.pop(place))
                    return self._replay(captured, given, registers, leaves, form)
        return self._other_form(key, form, leaves, given)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """The step as a method: one step function for each object."""
        if instance is None:
            return self
        name = f"_captured_{self._function.__name__}"
        bound = instance.__dict__.get(name)
        if bound is None:
            method = self._function.__get__(instance, owner)
            bound = StepFunction(method, self._max, self._tells)
            instance.__dict__[name] = bound
        return bound

    def __reduce__(self) -> Any:
        """Copied, and pickled, as the function it was made of."""
        return StepFunction, (self._function, self._max, self._tells)

    def _replay(
        self,
        captured: CapturedStep,
        given: list[Any],
        registers: list[float],
        leaves: list[Any],
        form: TreeSpec,
    ) -> Any:
        if not captured.takes_copies(given, leaves):
            args, kwargs = tree_unflatten(leaves, form)
            return self._function(*args, **kwargs)
        if ir.num_pending() >= overdue.LIMIT:
            overdue.cuts_before(captured.signature)
        counters.replays += 1
        return captured(given, registers)

    def _other_form(
        self, key: Hashable, form: TreeSpec, leaves: list[Any], given: list[Any]
    ) -> Any:
        """A call that no captured form fits, as far as that is seen quickly."""
        subject = self._subject(form, given)
        reason = None
        if self._forms:
            reason, known = self._reason(key, form, subject)
            if known is not None:
                return self._replay(known[0], given, known[1], leaves, form)
        captured = self._capture(key, subject, reason)
        if captured is None:
            args, kwargs = tree_unflatten(leaves, form)
            return self._function(*args, **kwargs)
        return self._replay(captured[0], given, captured[1], leaves, form)

    def _subject(self, form: TreeSpec, given: list[Any]) -> Subject:
        def call(leaves: list[Any]) -> Any:
            args, kwargs = tree_unflatten(leaves, form)
            return self._function(*args, **kwargs)

        owner, function = getattr(self._function, "__self__", None), self._function
        roots: list[tuple[str, Any]] = [("torch's hooks", _GLOBAL_HOOKS)]
        roots += [] if owner is None else [("self", owner)]
        roots.append((_name(function), function))
        named = zip(names_of(self._function, form), given, strict=True)
        roots += [(name, leaf) for name, leaf in named if _is_object(leaf)]
        return Subject(call, given, roots, functions=self._functions)

    def _reason(
        self, key: Any, form: TreeSpec, subject: Subject
    ) -> tuple[str, tuple[CapturedStep, list[float]] | None]:
        """Why no form fits; or one that does, where objects were replaced by equal ones."""
        state = subject.look()
        for captured in self._forms:
            if captured.key == key and captured.rebase(state):
                given = subject.leaves
                registers = captured.play(given) if captured.fits(given) else None
                if registers is not None:
                    return "", (captured, registers)
        last = self._forms[0]
        if last.key != key:
            return change_of_arguments(last.key, key, names_of(self._function, form)), None
        difference = last.state.difference(state)
        if difference is not None:
            return " ".join(difference), None
        return "a number is compared otherwise, or an argument shares memory otherwise", None

    def _capture(
        self, key: Any, subject: Subject, reason: str | None
    ) -> tuple[CapturedStep, list[float]] | None:
        if len(self._forms) >= self._max:
            self._tell(
                f"it has {self._max} captured forms, the most allowed (max_captures), and is "
                f"recorded in others: {reason}",
                about="max_captures",
            )
            return None
        refused = self._refused
        if refused[key] >= _ATTEMPTS or len(refused) > _FAILURES or not _may_try():
            return None
        names = names_of(self._function, key[1])
        if (why := unreplayable(subject.leaves, names)) is not None:
            self._refuse(key, why, attempts=_ATTEMPTS)
            return None
        try:
            trial, state = try_twice(subject)
        except CannotCaptureError as error:
            self._refuse(key, str(error))
            return None
        except Exception:
            # What fails for a reason of the script's own fails again as it runs by itself.
            return None
        self._refused.pop(key, None)
        captured = CapturedStep(trial, state, subject, key)
        given = subject.leaves
        registers = captured.play(given) if captured.fits(given) else None
        if registers is None:
            self._refuse(key, "what it can reach is another whenever it is looked at")
            return None
        self._forms.insert(0, captured)
        counters.captures += 1
        if reason:
            self._tell(f"captured again: {reason}")
        return captured, registers

    def _refuse(self, key: Hashable, why: str, attempts: int = 1) -> None:
        self._refused[key] += attempts
        if self._refused[key] == _ATTEMPTS:
            counters.refused_captures += 1
            self._tell(f"recorded in each call, not captured: {why}")

    def _tell(self, text: str, about: str | None = None) -> None:
        """Say something once."""
        if self._tells and (about or text) not in self._told:
            self._told.add(about or text)
            print(f"trcomp: {_name(self._function)}: {text}", file=sys.stderr)


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _is_object(leaf: Any) -> bool:
    return not isinstance(leaf, (type(None), bool, int, float, complex, str, bytes, torch.Tensor))


def _may_replay() -> bool:
    """Whether nothing looks into the step as it runs."""
    num_modes = torch._C._len_torch_function_stack()
    if num_modes and torch.get_default_device() != torch.device("cpu"):
        num_modes -= 1
    return not (
        num_modes
        or torch._C._len_torch_dispatch_stack()
        or ir.is_apart()
        or torch.compiler.is_compiling()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    )


def _may_try() -> bool:
    """Whether the function can be watched: Python has room for one profiler."""
    return sys.getprofile() is None


def _at_start(leaves: Sequence[Any]) -> list[Any]:
    """Device tensors that begin somewhere in a buffer, copied: where is then a number of a node."""
    return [
        leaf.clone() if is_device_tensor(leaf) and leaf.storage_offset() else leaf
        for leaf in leaves
    ]


@overload
def step(function: F) -> F: ...


@overload
def step(*, max_captures: int = 8) -> Callable[[F], F]: ...


def step(function: Any = None, *, max_captures: int = 8) -> Any:
    """Capture a training step as a whole: forward, backward and update become one call.

    The first call is recorded. Later ones are replayed without autograd, modules or dispatch, with
    the same results, the same draws and the same effects on modules, gradients and optimizers.
    A call that differs in what matters is captured anew, and the reason said once on stderr. What
    cannot be captured is recorded in each call, and the line that prevents it said.

    Args:
        function: The step.
        max_captures: How many forms of it to keep, such as shapes and modes.

    Raises:
        TypeError: What is decorated is no function.
        ValueError: max_captures is below 1.
    """
    if type(max_captures) is not int or max_captures < 1:
        raise ValueError(f"max_captures: got {max_captures!r}; a whole number from 1 is needed.")
    if function is not None and not callable(function):
        raise TypeError(
            f"trcomp.step: got {function!r} in place of a function. Write @trcomp.step, or "
            "@trcomp.step(max_captures=8)."
        )
    if function is None:
        return functools.partial(step, max_captures=max_captures)
    return StepFunction(function, max_captures)
