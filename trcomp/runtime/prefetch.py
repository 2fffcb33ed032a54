"""A loader's batches, moved ahead of the step by a background thread, with a step mark after each.

data loader --thread: next, move--> ready batches --for batch in loader--> the step, its mark

accelerate's loaders tell the script, through state that all share, which batch is the last:
gradient accumulation ends with it, and what was padded is cut off its metrics. Read ahead, they
would say so too early; they are read in step with the script.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trcomp import flags
from trcomp.errors import Problem, SpecError
from trcomp.runtime.batches import num_samples
from trcomp.runtime.forks import quiet_fork
from trcomp.runtime.metrics import counters

ERROR, SHORTEST = "error", "shortest"
"""Words for `uneven`."""
_JOIN_SECONDS = 10.0
_SIGNAL_SECONDS = 0.5
"""How long an early `break` waits for a dataset that is still busy with a batch."""


class PrefetchLoader:
    """Iterates over a loader whose batches are moved in the background.

    Each `iter()` is an iteration of its own. The step mark comes when the next batch is asked for,
    before waiting for it, so the device computes while the host waits; the last batch's comes at
    the end of the epoch. Attributes such as `dataset`, `batch_size` and `sampler` are the loader's.

    Args:
        loader: What gives the batches: a `DataLoader`, or any iterable.
        move: Moves one batch to the device; called in the background thread.
        step: The step mark.
        prefetch: Batches kept ready; None reads the flag.
        batches_per_step: Batches between step marks.
        pad: Makes a batch one of few shapes, before it is moved.
        uneven: What becomes of ranks with different numbers of batches: "error", or "shortest",
            which ends each pass with the rank that has the fewest.
        lengths: All ranks' numbers of batches, by this rank's; called as a pass begins, on each.

    Raises:
        SpecError: A count is not positive, or another word is none of those allowed.
    """

    def __init__(
        self,
        loader: Any,
        move: Callable[[Any], Any],
        step: Callable[[], None],
        prefetch: int | None = None,
        batches_per_step: int = 1,
        pad: Callable[[Any], Any] | None = None,
        uneven: str = ERROR,
        lengths: Callable[[int], Sequence[int]] = lambda length: [length],
    ) -> None:
        depth = flags.PREFETCH.get() if prefetch is None else prefetch
        counts = {"prefetch": depth, "batches_per_execution": batches_per_step}
        problems = [Problem(k, v, "a whole number from 1.") for k, v in counts.items() if v < 1]
        if uneven not in (ERROR, SHORTEST):
            problems.append(Problem("uneven", uneven, f'"{ERROR}" or "{SHORTEST}".'))
        if uneven == SHORTEST and not hasattr(loader, "__len__"):
            allowed = f'uneven="{SHORTEST}" needs one that has a length.'
            problems.append(Problem("loader", type(loader).__name__, allowed))
        if problems:
            raise SpecError(problems)
        self._loader = loader
        self._move = move
        self._step = step
        self._depth = depth
        self._batches_per_step = batches_per_step
        self._pad = pad
        self._lengths = lengths if uneven == SHORTEST else None

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # not set yet: unpickling, or a subclass's constructor
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __iter__(self) -> Generator[Any, None, None]:
        most = None if self._lengths is None else min(self._lengths(len(self._loader)))
        feed = (
            _InStep(self._loader, self._made)
            if hasattr(self._loader, "end_of_dataloader")
            else _Feed(self._loader, self._made, self._depth)
        )
        ended = self._begin_pass()
        batches = since_mark = 0
        try:
            while batches != most and (item := feed.take()) is not _END:
                batch, samples = item
                yield batch
                counters.samples += samples
                batches += 1
                since_mark += 1
                if since_mark == self._batches_per_step:
                    self._step()
                    since_mark = 0
            if since_mark:
                self._step()
            ended(batches)
        finally:
            feed.close()

    def _made(self, batch: Any) -> tuple[Any, int]:
        """What the script gets of a batch, and how many samples it is."""
        padded = batch if self._pad is None else self._pad(batch)
        return self._move(padded), num_samples(batch)

    def _begin_pass(self) -> Callable[[int], None]:
        """A pass begins; gives what is called with the number of its batches as it ends."""
        return lambda batches: None


_END = object()


class _InStep:
    """One iteration without a thread: each batch is read and moved when it is asked for."""

    def __init__(self, loader: Any, move: Callable[[Any], Any]) -> None:
        with quiet_fork():
            self._iterator = iter(loader)
        self._move = move

    def take(self) -> Any:
        """The next batch, or `_END`."""
        start = time.perf_counter()
        batch = next(self._iterator, _END)
        counters.input_wait_seconds += time.perf_counter() - start
        return batch if batch is _END else self._move(batch)

    def close(self) -> None:
        """End the loader's own iteration, as a `break` would."""
        if isinstance(self._iterator, Generator):
            self._iterator.close()


@dataclass(frozen=True)
class _Failure:
    error: BaseException


class _Feed:
    """One iteration: the thread that fills it, and the batches that are ready."""

    def __init__(self, loader: Any, move: Callable[[Any], Any], depth: int) -> None:
        # In the caller's thread: a DataLoader draws its seed and forks its workers here.
        with quiet_fork():
            iterator = iter(loader)
        self._ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._room = threading.Semaphore(depth)
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._fill, args=(iterator, move), name="trcomp-prefetch", daemon=True
        )
        self._thread.start()
        # A script that ends inside its loop: the thread must not meet a runtime being torn down.
        atexit.register(self.close)

    def _fill(self, iterator: Iterator[Any], move: Callable[[Any], Any]) -> None:
        try:
            while self._has_room():
                try:
                    batch = next(iterator)
                except StopIteration:
                    self._ready.put(_END)
                    return
                self._ready.put(move(batch))
        except BaseException as error:
            self._ready.put(_Failure(error))

    def _has_room(self) -> bool:
        self._room.acquire()
        return not self._stop.is_set()

    def take(self) -> Any:
        """The next batch, or `_END`; raises what the dataset raised."""
        start = time.perf_counter()
        item = self._ready.get()
        counters.input_wait_seconds += time.perf_counter() - start
        self._room.release()
        if isinstance(item, _Failure):
            if _tells_of_a_death(item.error):
                # PyTorch has a handler of signals raise which process it was and why, in the main
                # thread; that may come a moment later.
                time.sleep(_SIGNAL_SECONDS)
            raise item.error
        return item

    def close(self) -> None:
        """End the thread. Batches that were ready are dropped."""
        atexit.unregister(self.close)
        self._stop.set()
        self._room.release()
        self._thread.join(_JOIN_SECONDS)


def _tells_of_a_death(error: BaseException) -> bool:
    """Whether a process of the loader has died."""
    return isinstance(error, (EOFError, ConnectionError)) or "exited unexpectedly" in str(error)
