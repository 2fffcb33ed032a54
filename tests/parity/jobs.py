"""The jobs that are run in every place."""

from __future__ import annotations

from typing import Any

from trcomp import TrainingCompilerConfig

COMPILED = TrainingCompilerConfig(cache="off")

# In the order of their names: SageMaker does not keep another.
_HYPERPARAMETERS = {
    "flag": True,
    "list": [1, "b"],
    "lr": 0.1,
    "name": "a 'b' \"c\"",
    "neg": "-x",
    "none": None,
}

JOBS: dict[str, dict[str, Any]] = {
    "ranks": {
        "hyperparameters": _HYPERPARAMETERS,
        "arguments": ["data", "--fp16", "--layer=1"],
        "environment": {"MINE": "yes", "GPU_NUM_DEVICES": "2"},
        "compiler_config": COMPILED,
        "checkpoints": True,
    },
    "hosts": {"instance_count": 2, "compiler_config": COMPILED},
    "once-per-host": {"instance_count": 2, "environment": {"GPU_NUM_DEVICES": "2"}},
    "raises": {
        "arguments": ["--fail", "1"],
        "environment": {"GPU_NUM_DEVICES": "2"},
        "compiler_config": COMPILED,
    },
    "exits-without-xla": {
        "arguments": ["--exit", "7"],
        "compiler_config": TrainingCompilerConfig(enabled=False),
        "distribution": {"torch_distributed": {"enabled": True}},
    },
}
