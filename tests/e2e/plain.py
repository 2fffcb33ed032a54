"""Runs a script as `python SCRIPT …` would, on torch alone.

    python plain.py SCRIPT [ARGUMENT …]

A thread of gloo's that lets go of its last tensors while the interpreter ends aborts the process;
the wait gives it the time. Workers of a job wait likewise. As in those, a torchvision of another
build than torch's can be imported.
"""

import runpy
import sys
import time
from pathlib import Path

from trcomp.compat import torchvision

torchvision.install()
del sys.argv[0]
sys.path[0] = str(Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
time.sleep(0.2)
