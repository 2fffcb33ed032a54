"""What a SageMaker GPU instance has, as a dated table; a type that is not in it is not refused.

Nothing in a running job relies on this table: the container counts its own devices. It is for
plans, explanations and warnings made before any instance exists.

After the EC2 "Accelerated computing" instance pages. Types whose facts could not be confirmed
(p6-b300, p6e-gb200, g7, g7e) are left out rather than guessed.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from trcomp.rules import LOCAL_TYPES

AS_OF = "2026-11"
"""When the table was last written."""


@dataclass(frozen=True)
class InstanceFacts:
    """Facts of one instance type; None where they are not known.

    Attributes:
        instance_type: Such as ``ml.p4d.24xlarge``.
        num_gpus: GPUs per instance, 0 for one without.
        gpu: The GPU's name.
        gpu_memory_gib: Memory of one GPU.
        num_cpus: vCPUs.
        memory_gib: Memory of the instance.
        efa_devices: Elastic Fabric Adapters, 0 for none.
    """

    instance_type: str
    num_gpus: int | None = None
    gpu: str | None = None
    gpu_memory_gib: int | None = None
    num_cpus: int | None = None
    memory_gib: int | None = None
    efa_devices: int | None = None

    @property
    def known(self) -> bool:
        """Whether the number of devices is known."""
        return self.num_gpus is not None


def facts(
    instance_type: str, overrides: Mapping[str, InstanceFacts] | None = None
) -> InstanceFacts:
    """The facts of an instance type.

    A type that is not in the table gives facts that are all None, with a warning: new types appear
    more often than this file changes. The words of `LOCAL_TYPES` give the same without one, and
    families known to have no GPU (c, m, r, t) give that.

    Args:
        instance_type: SageMaker's name for it.
        overrides: Facts that take the table's place, by type.
    """
    known = {**_TABLE, **(overrides or {})}
    if instance_type in known:
        return known[instance_type]
    if not _may_have_gpus(instance_type):
        return InstanceFacts(instance_type, num_gpus=0)
    if instance_type not in LOCAL_TYPES:
        warnings.warn(
            f"Instance type {instance_type!r} is not in trcomp's table (as of {AS_OF}): its "
            "devices are counted when the job runs.",
            stacklevel=2,
        )
    return InstanceFacts(instance_type)


def known_types() -> tuple[str, ...]:
    """Every instance type of the table."""
    return tuple(_TABLE)


def _may_have_gpus(instance_type: str) -> bool:
    return re.match(r"ml\.[cmrt]\d", instance_type) is None


# (GPU, its memory in GiB): rows of type, GPUs, vCPUs, memory in GiB, EFA devices.
_Row = tuple[str, int, int, int, int]
_FAMILIES: dict[tuple[str, int], tuple[_Row, ...]] = {
    ("V100", 16): (
        ("p3.2xlarge", 1, 8, 61, 0),
        ("p3.8xlarge", 4, 32, 244, 0),
        ("p3.16xlarge", 8, 64, 488, 0),
    ),
    ("V100", 32): (("p3dn.24xlarge", 8, 96, 768, 1),),
    ("A100", 40): (("p4d.24xlarge", 8, 96, 1152, 4),),
    ("A100", 80): (("p4de.24xlarge", 8, 96, 1152, 4),),
    ("H100", 80): (
        ("p5.4xlarge", 1, 16, 256, 1),
        ("p5.48xlarge", 8, 192, 2048, 32),
    ),
    ("H200", 141): (
        ("p5e.48xlarge", 8, 192, 2048, 32),
        ("p5en.48xlarge", 8, 192, 2048, 16),
    ),
    ("B200", 179): (("p6-b200.48xlarge", 8, 192, 2048, 8),),
    ("T4", 16): (
        ("g4dn.xlarge", 1, 4, 16, 0),
        ("g4dn.2xlarge", 1, 8, 32, 0),
        ("g4dn.4xlarge", 1, 16, 64, 0),
        ("g4dn.8xlarge", 1, 32, 128, 1),
        ("g4dn.12xlarge", 4, 48, 192, 1),
        ("g4dn.16xlarge", 1, 64, 256, 1),
    ),
    ("A10G", 24): (
        ("g5.xlarge", 1, 4, 16, 0),
        ("g5.2xlarge", 1, 8, 32, 0),
        ("g5.4xlarge", 1, 16, 64, 0),
        ("g5.8xlarge", 1, 32, 128, 1),
        ("g5.12xlarge", 4, 48, 192, 1),
        ("g5.16xlarge", 1, 64, 256, 1),
        ("g5.24xlarge", 4, 96, 384, 1),
        ("g5.48xlarge", 8, 192, 768, 1),
    ),
    ("L4", 24): (
        ("g6.xlarge", 1, 4, 16, 0),
        ("g6.2xlarge", 1, 8, 32, 0),
        ("g6.4xlarge", 1, 16, 64, 0),
        ("g6.8xlarge", 1, 32, 128, 1),
        ("g6.12xlarge", 4, 48, 192, 1),
        ("g6.16xlarge", 1, 64, 256, 1),
        ("g6.24xlarge", 4, 96, 384, 1),
        ("g6.48xlarge", 8, 192, 768, 1),
    ),
    ("L40S", 48): (
        ("g6e.xlarge", 1, 4, 32, 0),
        ("g6e.2xlarge", 1, 8, 64, 0),
        ("g6e.4xlarge", 1, 16, 128, 0),
        ("g6e.8xlarge", 1, 32, 256, 1),
        ("g6e.12xlarge", 4, 48, 384, 1),
        ("g6e.16xlarge", 1, 64, 512, 1),
        ("g6e.24xlarge", 4, 96, 768, 2),
        ("g6e.48xlarge", 8, 192, 1536, 4),
    ),
}

_TABLE = {
    f"ml.{name}": InstanceFacts(f"ml.{name}", gpus, gpu, gpu_memory, cpus, memory, efa)
    for (gpu, gpu_memory), rows in _FAMILIES.items()
    for name, gpus, cpus, memory, efa in rows
}
