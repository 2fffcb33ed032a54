"""The lazy runtime: importing it makes `xla` a device of this process. JAX starts at first use."""

from trcomp.runtime import ops
from trcomp.runtime.device import DEVICE
from trcomp.runtime.metrics import metrics, metrics_report
from trcomp.runtime.sync import sync

__all__ = ["DEVICE", "metrics", "metrics_report", "ops", "sync"]
