"""One worker: runs the user's script as `__main__`, and says why if it fails."""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, TracebackType

from trcomp import compat, contract, error_file, flags, gloo
from trcomp.entrypoint.processes import die_with_parent
from trcomp.env.topology import Topology
from trcomp.env.variables import has_identity, identity


def main() -> None:
    """Run ``sys.argv[1]`` with the job's arguments, as ``python script.py …`` would.

    Ends with exit code 1 when the script raises, after the usual traceback; a SystemExit keeps
    its code. Either is written to the worker's error file first.
    """
    die_with_parent()
    script = Path(sys.argv[1])
    sys.argv = [sys.argv[1], *contract.script_arguments(os.environ)]
    sys.path[0] = str(script.parent)
    # The torch_xla module tree must be found even before the script imports torch.
    compat.install()
    rank = identity(os.environ).rank if has_identity(os.environ) else None
    pid = os.getpid()
    try:
        run_as_main(script)
        _finish_checkpoints()
    except SystemExit as error:
        if error.code not in (None, 0):
            _report(error.with_traceback(_below(error)), rank, pid)
        raise
    except Exception as error:
        try:
            _tell(error, rank, pid)
        except Exception as later:
            # A handler of signals, such as that of PyTorch's loader, may raise at any time.
            _tell(later, rank, pid)
        code = 1
    else:
        code = 0
    finally:
        if _has_process_group():
            gloo.let_finish()
    sys.exit(code)


def run_as_main(script: Path) -> None:
    """Execute a file as the module ``__main__``, and leave it in place for what outlives it.

    runpy puts the old `__main__` back when the script's last line is done, but threads, atexit
    functions and pickling still look their functions up there.
    """
    module = ModuleType("__main__")
    vars(module).update(__file__=str(script), __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = module
    exec(compile(script.read_bytes(), str(script), "exec", dont_inherit=True), vars(module))


def _finish_checkpoints() -> None:
    """A last checkpoint that cannot be written is the script's failure."""
    module = sys.modules.get("trcomp.checkpoint.checkpointer")
    if module is not None:
        module.finish_all()


def _has_process_group() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _tell(error: Exception, rank: int | None, pid: int) -> None:
    _report(error.with_traceback(_below(error)), rank, pid)
    sys.excepthook(type(error), error, error.__traceback__)


def _report(error: BaseException, rank: int | None, pid: int) -> None:
    """Say why the worker fails; what the script has forked may fail, and the script go on."""
    path = flags.ERROR_FILE.get()
    if path and os.getpid() == pid:
        error_file.write(Path(path), error, rank=rank, host=_host(os.environ))


def _host(environ: Mapping[str, str]) -> str:
    text = flags.TOPOLOGY.get(environ)
    if not text:
        return "localhost"
    return Topology.from_json(text).hosts[flags.HOST_INDEX.get(environ)].name


def _below(error: BaseException) -> TracebackType | None:
    """The traceback from the script's own first frame on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main()
