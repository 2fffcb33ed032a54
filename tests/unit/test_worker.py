"""What a worker leaves of a script that fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from trcomp import error_file, flags


def test_a_signal_handler_that_raises_meanwhile_hides_no_failure(tmp_path: Path) -> None:
    """PyTorch's loader has one, which raises when a process of the loader has died."""
    script = """
        from trcomp import error_file

        whole = error_file.write


        def interrupted(*args, **keywords):
            error_file.write = whole
            raise RuntimeError("a process was killed")


        error_file.write = interrupted
        raise ValueError("bad")
    """
    (tmp_path / "train.py").write_text(dedent(script))
    place = tmp_path / "error.json"
    command = [sys.executable, "-m", "trcomp.entrypoint.worker", str(tmp_path / "train.py")]
    environ = os.environ | {flags.ERROR_FILE.name: str(place)}
    ended = subprocess.run(command, env=environ, stderr=subprocess.PIPE, text=True, check=False)
    report = error_file.read(place)
    assert report is not None and ended.returncode == 1
    assert report.exception == "RuntimeError: a process was killed"
    assert "ValueError: bad" in report.traceback and "ValueError: bad" in ended.stderr
