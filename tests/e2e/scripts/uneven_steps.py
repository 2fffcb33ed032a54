"""Rank 1 makes one step more than rank 0, without XLA."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3 + dist.get_rank()):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
