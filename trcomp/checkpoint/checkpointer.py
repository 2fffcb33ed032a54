"""Checkpointer: saves what a script trains between its steps, and takes it up in the next run."""

from __future__ import annotations

import io
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from trcomp import flags
from trcomp.checkpoint import loading, randomness, ranks
from trcomp.checkpoint.files import Files
from trcomp.checkpoint.ranks import Ranks
from trcomp.checkpoint.stopping import EXIT_CODE, Notice, Vote
from trcomp.checkpoint.values import HostCopy, for_loading
from trcomp.errors import Problem, SpecError

_FORMAT = 1
_LOAD = "load_state_dict"
_LIVE: weakref.WeakSet[Checkpointer] = weakref.WeakSet()


class Checkpointer:
    """Saves what a script trains every so many steps, and goes on from the last whole checkpoint.

    Every rank makes one, and makes the same calls. Values are copied to the host at a step's end;
    the file is written by a thread while training goes on. A checkpoint is whole or not there: it
    is written beside its name, flushed to the disk and renamed. Random states and the place in the
    data are part of it, so that a resumed run computes what an uninterrupted one would.

    After SIGTERM, which spot instances and stopped jobs get, all ranks save after the same step and
    end with exit code 143.

    Args:
        directory: Where checkpoints lie. None: the job's own checkpoint directory, which
            `checkpoint_s3_uri` keeps from one job to the next; outside of a job ``checkpoints``.
        every: Steps between checkpoints; None: only `save` and SIGTERM make one.
        keep: How many of the newest stay. Of a sharded one, one more: the newest may not be whole.
        sharded: Each rank writes a file of its own, with its part of sharded tensors (FSDP,
            DTensor); as many ranks must resume. Otherwise the first rank of each host writes all.
        things: What is saved, by name: modules, optimizers, schedules, a GradScaler, anything with
            `state_dict` and `load_state_dict`.

    Raises:
        SpecError: Holds every problem of these words at once.
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        every: int | None = None,
        keep: int = 3,
        sharded: bool = False,
        **things: Any,
    ) -> None:
        problems = [*_count_problems(every, keep), *_thing_problems(things)]
        if problems:
            raise SpecError(problems)
        place = directory or flags.CHECKPOINT_DIR.get() or "checkpoints"
        self._directory = Path(os.path.expanduser(place)).absolute()
        self._every, self._keep, self._sharded = every, keep, sharded
        self._things = {name: _unwrapped(thing) for name, thing in things.items()}
        self._steps = self._epoch = self._batches = 0
        self._epoch_is_done = False
        self._generators: list[torch.Generator] = []
        self._begin: dict[str, Any] | None = None
        """The random states as this epoch began, which decide its order."""
        self._resumed: dict[str, Any] | None = None
        """Those of the checkpoint, as its epoch began and as it was made, until they are taken."""
        self._writing: threading.Thread | None = None
        self._error: BaseException | None = None
        self._notice = Notice(before_end=_join_all)
        _LIVE.add(self)

    @property
    def steps(self) -> int:
        """Steps so far, those before a resumption included."""
        return self._steps

    @property
    def stopping(self) -> bool:
        """Whether this process was told to end: within two steps it will."""
        return self._notice.given

    def resume(self) -> int | None:
        """Load the newest checkpoint that is whole for every rank.

        What is newer and damaged is named in a warning and set aside as ``….broken``.

        Returns:
            Its step; None if there is none, and nothing was changed.

        Raises:
            SpecError: It holds other things, or was made by another number of ranks and cannot be
                used by this one.
        """
        files = self._files
        files.remove_parts()
        step = self._agreed()
        for newer in files.steps():
            if step is None or newer > step:
                files.set_aside(newer)
        if step is None:
            self._refuse_others()
            return None
        self._take(files.read(step))
        return step

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """The epochs that are left, from the resumed one on; `close` comes at their end."""
        while self._epoch < num_epochs:
            yield self._epoch
            self._end_epoch()
        self.close()

    def batches(self, loader: Any) -> Iterator[Any]:
        """An epoch's batches, in a resumed one those that are left.

        Those before are not read where the loader has a sampler; a stream is read up to there. The
        order is the same if it follows from torch's, numpy's or Python's random state as the epoch
        begins, from the loader's generator, or from the epoch's number.

        Args:
            loader: A `DataLoader`, a device loader over one, or any iterable. Not wrapped by
                another loader: what is handed out is taken for done at the end of the step.
        """
        if self._epoch_is_done:
            self._end_epoch()
        self._generators = loading.generators(loader)
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            randomness.restore(resumed["begin" if self._batches else "now"], self._generators)
        self._begin = randomness.state(self._generators)
        iterator, batch = loading.begun(loader, self._batches)
        if resumed is not None and self._batches:
            # The order of the epoch is drawn by now.
            randomness.restore(resumed["now"], self._generators)
        while batch is not loading.END:
            self._batches += 1
            yield batch
            batch = next(iterator, loading.END)
        self._epoch_is_done = True

    def step(self) -> None:
        """Say that an optimizer's step is done; comes last in the loop's body.

        Saves if `every` steps have passed.

        Raises:
            SystemExit: The job is to stop, on all ranks after this step; it is saved.
            OSError: The checkpoint before could not be written.
        """
        self._steps += 1
        stops = self._vote.cast(self._notice.given)
        if stops or (self._every is not None and self._steps % self._every == 0):
            self.save()
        if stops:
            self.close()
            self._warn(f"told to end by SIGTERM: saved after step {self._steps}")
            raise SystemExit(EXIT_CODE)

    def save(self) -> None:
        """Save now; every rank calls it. Returns once values are copied, before they are written.

        After an epoch's batches that epoch counts as done, so this comes last in the loop's body.

        Raises:
            OSError: The checkpoint before could not be written.
            SpecError: Some state holds what cannot be loaded safely.
        """
        self._raise_when_written()
        self._ranks.settle()
        writes = self._sharded or self._ranks.local_rank == 0
        copy = HostCopy(whole=not self._sharded, keeps=writes)
        things = {name: copy.of(thing.state_dict(), name) for name, thing in self._things.items()}
        now = {"now": randomness.state(self._generators), "begin": self._begin}
        # Whoever is here has written the checkpoint before.
        everyones = self._ranks.exchange(b"" if self._sharded else _packed(now))
        if not writes:
            return
        state = {
            "format": _FORMAT,
            "world_size": self._ranks.world_size,
            "sharded": self._sharded,
            "step": self._steps,
            "epoch": self._epoch + self._epoch_is_done,
            "batches": 0 if self._epoch_is_done else self._batches,
            "random": now if self._sharded else [_unpacked(one) for one in everyones],
            "things": things,
        }
        # No daemon: a process that ends waits for it.
        self._writing = threading.Thread(
            target=self._write, args=[self._steps, state], name="trcomp-checkpoint"
        )
        self._writing.start()

    def close(self) -> None:
        """Return when the last checkpoint is on the disk; SIGTERM then ends this process as before.

        Raises:
            OSError: The checkpoint could not be written.
        """
        self._notice.ignore()
        self._raise_when_written()

    @cached_property
    def _ranks(self) -> Ranks:
        return ranks.found()

    @cached_property
    def _vote(self) -> Vote:
        return Vote(self._ranks)

    @property
    def _files(self) -> Files:
        parts = self._ranks.world_size if self._sharded else 1
        return Files(self._directory, self._ranks.rank, parts)

    def _write(self, step: int, state: dict[str, Any]) -> None:
        try:
            self._files.write(step, state)
            self._files.remove_before(step, self._keep + self._sharded)
        except BaseException as error:
            self._warn(f"step {step} could not be written: {error}")
            error.add_note(f"The checkpoint of step {step} could not be written.")
            self._error = error

    def _join(self) -> None:
        if self._writing is not None:
            self._writing.join()

    def _raise_when_written(self) -> None:
        self._join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _agreed(self) -> int | None:
        """The newest step whose file is whole for every rank: they look back together."""
        files = self._files
        steps = files.steps()
        while True:
            while steps and (fault := files.fault(steps[0])) is not None:
                self._warn(f"{files.path(steps[0])} is damaged and not used: {fault}")
                del steps[0]
            own = steps[0] if steps else -1
            everyones = [int(text) for text in self._ranks.exchange(str(own).encode())]
            oldest = min(everyones)
            if oldest == max(everyones):
                return None if oldest < 0 else oldest
            for step in [one for one in steps if one > oldest]:
                lacking = everyones.index(oldest)
                self._warn(f"{files.path(step)} is not used: rank {lacking} has none of that step")
            steps = [one for one in steps if one <= oldest]

    def _refuse_others(self) -> None:
        others = self._files.others()
        if others:
            own = f"the parts of {self._files.parts} ranks" if self._sharded else "one whole file"
            allowed = f"with sharded={self._sharded} {own} of a step can be resumed from here."
            raise SpecError([Problem("directory", str(self._directory / others[0]), allowed)])

    def _take(self, state: dict[str, Any]) -> None:
        problems = self._state_problems(state)
        if problems:
            raise SpecError(problems)
        for name, thing in self._things.items():
            saved = for_loading(thing, state["things"][name], whole=not state["sharded"])
            thing.load_state_dict(saved)
        self._steps, self._epoch, self._batches = state["step"], state["epoch"], state["batches"]
        before, now = state["world_size"], self._ranks.world_size
        if before != now:
            self._batches = self._batches * before // now
            self._warn(f"made by {before} ranks, resumed by {now}: random states start anew")
            return
        own = state["random"] if state["sharded"] else state["random"][self._ranks.rank]
        randomness.restore(own["now"])
        self._resumed, self._begin = own, own["begin"]

    def _state_problems(self, state: dict[str, Any]) -> list[Problem]:
        place = str(self._files.path(state["step"]))
        if state["format"] != _FORMAT:
            allowed = f"this version of trcomp reads format {_FORMAT}."
            return [Problem(place, f"format {state['format']}", allowed)]
        saved, wanted = set(state["things"]), set(self._things)
        if saved == wanted:
            return []
        held = ", ".join(sorted(saved)) or "nothing"
        allowed = f"it holds {held}; name the same, or choose another directory."
        return [Problem(place, sorted(wanted), allowed)]

    def _end_epoch(self) -> None:
        self._epoch, self._batches, self._epoch_is_done = self._epoch + 1, 0, False

    def _warn(self, text: str) -> None:
        print(f"trcomp: checkpoint: {text}", file=sys.stderr, flush=True)


def finish_all() -> None:
    """Wait for what is being written.

    Raises:
        OSError: It could not be written.
    """
    for checkpointer in list(_LIVE):
        checkpointer._raise_when_written()


def _join_all() -> None:
    for checkpointer in list(_LIVE):
        checkpointer._join()


def _unwrapped(thing: Any) -> Any:
    """A module without DistributedDataParallel: other numbers of ranks can load it."""
    return thing.module if isinstance(thing, DistributedDataParallel) else thing


def _packed(state: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(state, stream)
    return stream.getvalue()


def _unpacked(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True)


def _count_problems(every: Any, keep: Any) -> Iterator[Problem]:
    for name, count in {"every": 1 if every is None else every, "keep": keep}.items():
        if type(count) is not int or count < 1:
            yield Problem(name, count, "a whole number from 1.")


def _thing_problems(things: dict[str, Any]) -> Iterator[Problem]:
    for name, thing in things.items():
        if not all(callable(getattr(thing, word, None)) for word in ("state_dict", _LOAD)):
            allowed = f"an object with state_dict and {_LOAD}, such as a module or an optimizer."
            yield Problem(name, type(thing).__name__, allowed)
