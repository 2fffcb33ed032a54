"""Every TRCOMP_* environment variable: type, default, help, part of the compile key or not."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from trcomp.errors import Problem, SpecError

T = TypeVar("T", bool, int, str)

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"", "0", "false", "no", "off"}


@dataclass(frozen=True)
class Flag(Generic[T]):
    """One environment variable. `flag.get()` reads the environment at each call."""

    name: str
    default: T
    help: str
    in_key: bool = False
    """Whether two runs that differ in it must not share a compiled executable."""
    largest: int | None = None
    """Of a number that can be none but 0 up to this."""

    def get(self, environ: Mapping[str, str] | None = None) -> T:
        """The flag's value.

        Raises:
            SpecError: The variable is set to something its type does not admit.
        """
        text = (os.environ if environ is None else environ).get(self.name)
        if text is None:
            return self.default
        if isinstance(self.default, bool):
            low = text.strip().lower()
            if low in _TRUE | _FALSE:
                return low in _TRUE
            raise SpecError([Problem(self.name, text, "a switch: 1 or 0.")])
        if isinstance(self.default, int):
            allowed = "a whole number" if self.largest is None else f"0 to {self.largest}"
            try:
                number = int(text)
            except ValueError:
                raise SpecError([Problem(self.name, text, f"{allowed}.")]) from None
            if self.largest is not None and not 0 <= number <= self.largest:
                raise SpecError([Problem(self.name, text, f"{allowed}.")])
            return number
        return text


# What the entrypoint tells its workers.
WORKER = Flag(
    "TRCOMP_WORKER", False, "Set in trcomp's workers: `import torch` brings up the runtime."
)
ENABLED = Flag("TRCOMP_ENABLED", True, "0 runs the script on torch's own devices, without XLA.")
CUDA_TO_XLA = Flag(
    "TRCOMP_CUDA_TO_XLA",
    False,
    "1 makes `cuda` mean this process's xla device, for scripts written for GPUs. Set in workers, "
    "unless TrainingCompilerConfig(cuda_to_xla=False); set it to run such a script outside a job.",
)
DEBUG = Flag(
    "TRCOMP_DEBUG",
    False,
    "1 writes each compiled graph into output/data/compiler: as text, StableHLO and optimised HLO.",
)
PROFILE_STEPS = Flag(
    "TRCOMP_PROFILE_STEPS",
    "",
    "FIRST-LAST: the steps of which each rank writes a trace into output/data/profile.",
)
METRIC_DEFINITIONS = Flag(
    "TRCOMP_METRIC_DEFINITIONS",
    "",
    "The job's metric_definitions as JSON, name to pattern: what of its lines is in metrics.jsonl.",
)
COORDINATOR = Flag(
    "TRCOMP_COORDINATOR", "", "address:port at which the ranks of a job find each other."
)
JOB_NAME = Flag("TRCOMP_JOB_NAME", "", "The job this process belongs to.")
HOST_ADDRESSES = Flag(
    "TRCOMP_HOST_ADDRESSES",
    "",
    "name=address pairs, comma-separated, where host names do not resolve.",
)
LOG_DIR = Flag("TRCOMP_LOG_DIR", "", "Where the supervisor writes one log file per rank.")
REPORT_DIR = Flag("TRCOMP_REPORT_DIR", "", "Where each worker writes its metrics as it ends.")
TOPOLOGY = Flag("TRCOMP_TOPOLOGY", "", "The job's hosts and devices, as Topology.to_json.")
HOST_INDEX = Flag("TRCOMP_HOST_INDEX", 0, "Which of the topology's hosts this process runs on.")
ERROR_FILE = Flag(
    "TRCOMP_ERROR_FILE", "", "Where a worker whose script raises writes why, as JSON."
)
CHECKPOINT_DIR = Flag(
    "TRCOMP_CHECKPOINT_DIR",
    "",
    "Where the job's checkpoints lie on this host; trcomp.checkpoint writes there by default.",
)
PROGRESS_DIR = Flag("TRCOMP_PROGRESS_DIR", "", "Where each rank says how far it has come.")
GRACE_SECONDS = Flag("TRCOMP_GRACE_SECONDS", 30, "Seconds between SIGTERM and SIGKILL.")
MAX_RESTARTS = Flag(
    "TRCOMP_MAX_RESTARTS",
    0,
    "How often a job's workers are started anew within it if its script fails, to go on from its "
    "checkpoints.",
)
HOSTS_PORT = Flag(
    "TRCOMP_HOSTS_PORT",
    43859,
    "Port of the first host, through which hosts of a job hear that one has died, failed or fallen "
    "silent. 0: they do not; SageMaker and the ranks' own connections may tell them.",
    largest=65535,
)
WATCHDOG_SECONDS = Flag(
    "TRCOMP_WATCHDOG_SECONDS",
    600,
    "Seconds without a step, after its first, from which a rank is taken to hang: the job then "
    "shows all ranks' stacks and fails. 0: never.",
)

JOB_ONLY = (
    WORKER,
    ENABLED,
    CUDA_TO_XLA,
    DEBUG,
    PROFILE_STEPS,
    METRIC_DEFINITIONS,
    COORDINATOR,
    JOB_NAME,
    HOST_ADDRESSES,
    LOG_DIR,
    REPORT_DIR,
    TOPOLOGY,
    HOST_INDEX,
    ERROR_FILE,
    PROGRESS_DIR,
    CHECKPOINT_DIR,
)
"""What holds for one job only: a job started from within another must not inherit it."""

# The client.
HOME = Flag("TRCOMP_HOME", "", "Where job directories live; default ~/.local/share/trcomp.")

PROFILE = Flag(
    "TRCOMP_PROFILE", "", "The profile of trcomp.toml or [tool.trcomp] that jobs are run with."
)
WORD_PREFIX = "TRCOMP_WORD_"
"""Before a word of `Estimator` in capitals: its value for the command line, over that of a file."""
PRICES = Flag(
    "TRCOMP_PRICES",
    "",
    "TOML file with the hourly prices of instance types, for plans and running jobs.",
)
BUILD_ARGS = Flag(
    "TRCOMP_BUILD_ARGS",
    "",
    "Build arguments of every image that is built, NAME=VALUE separated by spaces, such as "
    "BASE_IMAGE.",
)
PUSH = Flag(
    "TRCOMP_PUSH",
    False,
    "1 lets a job in SageMaker without image_uri build and push its image where it is missing.",
)
REGISTRY_USERNAME = Flag(
    "TRCOMP_REGISTRY_USERNAME",
    "",
    "Who pushes to a registry that is not Amazon's; default: Docker's own configuration.",
)
REGISTRY_PASSWORD = Flag(
    "TRCOMP_REGISTRY_PASSWORD", "", "The password, or a token, of TRCOMP_REGISTRY_USERNAME."
)

# The runtime.
EAGER = Flag(
    "TRCOMP_EAGER", False, "1 runs each operator at once: errors at the script's own line."
)
CHECK = Flag("TRCOMP_CHECK", False, "1 compares each operator's results with torch's on the CPU.")
CACHE = Flag(
    "TRCOMP_CACHE",
    "",
    "Directory that keeps executables from one process to the next, `off` for none, for a job also "
    "s3://bucket/prefix; default ~/.cache/trcomp.",
)
METRICS = Flag(
    "TRCOMP_METRICS",
    True,
    "0 writes no metrics.jsonl, no TensorBoard events, and nothing to MLflow.",
)
PREFETCH = Flag("TRCOMP_PREFETCH", 2, "Batches the device loader keeps ahead of the step.")
MAX_PENDING = Flag(
    "TRCOMP_MAX_PENDING",
    10_000,
    "Recorded operations after which a script that ends no step is cut, where one recurs.",
)
STEPS = Flag(
    "TRCOMP_STEPS", 0, "Steps after which the script ends as if it called exit(); 0: it goes on."
)
COMPILE_MODELS = Flag(
    "TRCOMP_COMPILE_MODELS",
    False,
    "1 compiles each model that is moved to the device, as torch.compile(backend='trcomp') does.",
)
BUCKET_MB = Flag(
    "TRCOMP_BUCKET_MB", 32, "Size of a gradient all-reduce bucket, in MiB.", in_key=True
)

ALL: tuple[Flag[bool] | Flag[int] | Flag[str], ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Flag)
)
