"""What scaling.py runs as a job: a ViT trained data parallel, as CUDA scripts for torchrun do it.

Rank 0 prints a line of JSON: the times of steps after the first few.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--root", help="where the package benchmarks lies")
parser.add_argument("--model")
parser.add_argument("--batch", type=int, help="of all ranks together")
parser.add_argument("--steps", type=int)
args = parser.parse_args()
sys.path.append(args.root)

from benchmarks.models import MODELS, Trainer  # noqa: E402

WARM_UP = 4


def main() -> None:
    """Train."""
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    trainer = Trainer(MODELS[args.model](), device)
    trainer.model = DistributedDataParallel(trainer.model)
    mine = slice(dist.get_rank(), args.batch, dist.get_world_size())
    trainer.batch = {name: tensor[mine] for name, tensor in trainer.batch.items()}
    seconds = []
    for _ in range(WARM_UP + args.steps):
        start = time.perf_counter()
        trainer.step()
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    if dist.get_rank() == 0:
        print(json.dumps({"seconds": seconds[WARM_UP:]}), flush=True)
    dist.destroy_process_group()


main()
