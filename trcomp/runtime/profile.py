"""A trace of some of the script's steps, for Perfetto and XProf, in a job with `profile_steps`.

output/data/profile/rank-0.trace.json.gz                      ui.perfetto.dev
                    plugins/profile/trcomp/rank-0.xplane.pb   XProf, TensorBoard: all ranks
"""

from __future__ import annotations

import atexit
import contextlib
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from trcomp import flags
from trcomp.profile_steps import ProfileSteps
from trcomp.runtime import hlo_places, own_rank
from trcomp.runtime.metrics import counters, step_observers
from trcomp.runtime.output import folder

SESSION = "plugins/profile/trcomp"
"""Where TensorBoard looks for traces, and the name under which it lists these."""


def install() -> None:
    """Trace the steps that the job asks for."""
    steps = ProfileSteps.checked(flags.PROFILE_STEPS.get(), flags.PROFILE_STEPS.name)
    if steps is not None:
        profile = _Profile(steps)
        step_observers.append(profile.note_step)
        atexit.register(profile.end)


class _Written:
    steps: tuple[int, int] | None = None


def summary() -> dict[str, Any] | None:
    """Which steps were traced, and the file's name, for the report; None if none were."""
    if _Written.steps is None:
        return None
    return {"steps": list(_Written.steps), "file": f"profile/{_trace_name()}"}


def _trace_name() -> str:
    return f"rank-{own_rank.identity().rank}.trace.json.gz"


class _Profile:
    """The trace of one stretch of steps: waits for it, records, writes."""

    def __init__(self, steps: ProfileSteps) -> None:
        self._steps = steps
        self._tracer: _XlaTracer | _PlainTracer | None = None
        self._over = False
        self._writing: threading.Thread | None = None

    def note_step(self) -> None:
        """A step has ended."""
        if self._over:
            return
        if self._tracer is None and counters.steps >= self._steps.first - 1:
            self._begin()
        elif self._tracer is not None and counters.steps >= self._steps.last:
            self._tracer.settle()
            # Beside the steps that go on.
            self._writing = threading.Thread(target=self._stop(), name="trcomp-profile")
            self._writing.start()

    def end(self) -> None:
        """The script has ended: write what there is."""
        if self._tracer is not None and not self._over:
            with contextlib.suppress(Exception):  # Of a script that failed: it was told.
                self._tracer.settle()
            self._stop()()
        elif self._tracer is None and not self._over and counters.steps:
            _tell(f"no profile of steps {self._steps}: the script ended after {counters.steps}.")
        if self._writing is not None:
            self._writing.join()

    def _begin(self) -> None:
        self._begun = counters.steps + 1
        self._tracer = _XlaTracer() if flags.ENABLED.get() else _PlainTracer()
        self._tracer.settle()
        try:
            self._tracer.start()
        except Exception as error:  # A job is not lost over its profile.
            self._over = True
            _tell(f"no profile of steps {self._steps}: {error}")
        # After what the tracer needs has registered its own end, so that this one comes first.
        atexit.unregister(self.end)
        atexit.register(self.end)

    def _stop(self) -> Callable[[], None]:
        """End the trace; returns what writes it."""
        assert self._tracer is not None
        self._over = True
        self._last = max(counters.steps, self._begun)
        try:
            return partial(self._write, self._tracer.stop())
        except Exception as error:
            return partial(_tell, f"no profile of steps {self._steps}: {error}")

    def _write(self, finish: Callable[[Path], object]) -> None:
        """Put the trace into its place."""
        target = folder("profile")
        try:
            target.mkdir(parents=True, exist_ok=True)
            finish(target)
        except Exception as error:
            _tell(f"no profile of steps {self._steps}: {error}")
            return
        _Written.steps = (self._begun, self._last)
        if not own_rank.identity().rank:
            _tell(f"wrote a profile of steps {self._begun} to {self._last}: {target}")


class _XlaTracer:
    """jax's profiler: what the host does and the device's operations, with where they come from."""

    def start(self) -> None:
        """Begin the trace."""
        import jax

        from trcomp.runtime import scopes

        # Graphs that run by now have their names; looking for more would be in the trace.
        scopes.Asked.on = False
        options = jax.profiler.ProfileOptions()
        # Every call of a Python function would be most of the trace, and of the time.
        options.python_tracer_level = 0
        self._scratch = tempfile.mkdtemp(prefix="trcomp-profile-")
        jax.profiler.start_trace(self._scratch, profiler_options=options)

    def settle(self) -> None:
        """Wait for the device: what the steps started is a part of them."""
        from trcomp.runtime.sync import finish

        finish()

    def stop(self) -> Callable[[Path], object]:
        """End the trace; returns what writes it into a directory."""
        import jax

        from trcomp.runtime import scopes

        jax.profiler.stop_trace()
        scopes.Asked.on = flags.DEBUG.get()
        return self._finish

    def _finish(self, target: Path) -> None:
        scratch = Path(self._scratch)
        try:
            rank = own_rank.identity().rank
            (events,) = scratch.rglob("*.trace.json.gz")
            (planes,) = scratch.rglob("*.xplane.pb")
            hlo_places.write_trace(events, target / _trace_name(), rank)
            (target / SESSION).mkdir(parents=True, exist_ok=True)
            shutil.copy(planes, target / SESSION / f"rank-{rank}.xplane.pb")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


class _PlainTracer:
    """torch's profiler, for a job without XLA."""

    def start(self) -> None:
        """Begin the trace."""
        import torch

        self._profile = torch.profiler.profile(with_stack=True)
        self._profile.start()

    def settle(self) -> None:
        """Nothing: torch's profiler waits itself."""

    def stop(self) -> Callable[[Path], object]:
        """End the trace; returns what writes it into a directory."""
        self._profile.stop()
        return lambda target: self._profile.export_chrome_trace(str(target / _trace_name()))


def _tell(message: str) -> None:
    print(f"[trcomp] {message}", file=sys.stderr, flush=True)
