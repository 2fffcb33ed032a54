"""Train a Vision Transformer through XLA, one process per device: python examples/vit/launch.py"""

from pathlib import Path

from trcomp import Estimator, TrainingCompilerConfig

Estimator(
    entry_point="train.py",
    source_dir=Path(__file__).parent,
    instance_type="local_process",
    instance_count=1,
    compiler_config=TrainingCompilerConfig(),
    hyperparameters={"steps": 50},
).fit()
