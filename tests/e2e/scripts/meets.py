"""Adds up over all ranks, through XLA or plain gloo, and again until it is told to end."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

import trcomp.runtime as rt

place = Path(os.environ["MEETING"])
dist.init_process_group("xla" if rt.device().type == "xla" else "gloo")
total = torch.ones(2, device=rt.device())
dist.all_reduce(total)
print("sum", *total.tolist(), flush=True)
dist.barrier()
(place / f"met-{dist.get_rank()}").touch()
ended = torch.zeros(1, device=rt.device())
while not ended.item():
    ended.fill_(dist.get_rank() == 0 and (place / "end").exists())
    dist.all_reduce(ended)
    time.sleep(0.05)
