"""The script starts its ranks; one of them fails."""

import sys
import time

import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp


def run(index):
    if xm.get_ordinal() == 1:
        if "--exit" in sys.argv:
            sys.exit(7)
        raise ValueError("rank one is bad")
    time.sleep(300)


if __name__ == "__main__":
    xmp.spawn(run)
