"""What torch_xla has and the tree has not: it can be imported, and says why when it is used.

Whole modules are in the table here, and `trcomp.compat` finds them; any public name is in them.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

from trcomp import flags
from trcomp.errors import UnsupportedError


class Refusal(NamedTuple):
    """Modules that are out of scope for one reason.

    Attributes:
        modules: Their names without `torch_xla.`, separated by spaces.
        why: The reason, a clause.
        instead: The next step, a sentence.
    """

    modules: str
    why: str
    instead: str


REFUSALS = (
    Refusal(
        """
        distributed.spmd distributed.spmd.api distributed.spmd.debugging
        distributed.spmd.xla_sharded_tensor distributed.spmd.xla_sharding
        experimental.distributed_checkpoint experimental.distributed_checkpoint.manager
        experimental.distributed_checkpoint.planners experimental.distributed_checkpoint.util
        experimental.dynamo_mark_sharding experimental.spmd_fully_sharded_data_parallel
        """,
        "one program for all devices (SPMD) is not offered; each rank is a process with one device",
        "Train data-parallel: one process per device, and xm.optimizer_step or "
        "DistributedDataParallel.",
    ),
    Refusal(
        """
        distributed.fsdp distributed.fsdp.consolidate_sharded_ckpts
        distributed.fsdp.state_dict_utils distributed.fsdp.utils distributed.fsdp.wrap
        distributed.fsdp.xla_flatten_params_wrapper
        distributed.fsdp.xla_fully_sharded_data_parallel
        distributed.zero_redundancy_optimizer
        """,
        "parameters and states sharded by torch_xla's own classes are not offered",
        "Use DistributedDataParallel; torch.distributed.optim.ZeroRedundancyOptimizer shards the "
        "optimizer's state.",
    ),
    Refusal(
        "distributed.data_parallel",
        "several devices driven by threads of one process are not offered",
        "Start one process per device: torch_xla.launch(fn).",
    ),
    Refusal(
        """
        experimental.custom_kernel experimental.pallas_kernels
        experimental.pallas_kernels.multi_queries_paged_attention_kernel
        experimental.pallas_kernels.quantized_matmul_kernel
        experimental.pallas_kernels.ragged_paged_attention_kernel
        experimental.pallas_kernels.ragged_paged_attention_v2
        experimental.splash_attention experimental.quantized experimental.xla_quantized_matmul
        """,
        "kernels written for TPUs are not offered",
        "Use torch's operators, such as torch.nn.functional.scaled_dot_product_attention.",
    ),
    Refusal(
        """
        stablehlo tf_saved_model_integration experimental.mark_pattern_utils
        experimental.stablehlo_custom_call experimental.unbounded_dynamism_export
        experimental.xla_dynamic_reshape_ops experimental.xla_marker
        experimental.xla_mlir_debuginfo utils.stablehlo_test_utils
        """,
        "exporting models is not offered",
        "Save the state_dict, and export the model with torch.export where it will run.",
    ),
    Refusal(
        """
        core.xla_builder core.xla_op_registry experimental.callback
        experimental.dynamo_set_buffer_donor experimental.fori_loop experimental.pytreeify
        """,
        "XLA computations built by hand are not offered",
        "Write the computation with torch's operators: it is recorded and compiled with the step.",
    ),
    Refusal(
        "debug.model_comparator debug.metrics_compare_utils debug.frame_parser_util",
        "comparing saved tensors and reports is not offered",
        f"{flags.CHECK.name}=1 compares each operator with torch on the CPU, and "
        "torch_xla.debug.metrics has the numbers.",
    ),
)
_BY_MODULE = {f"torch_xla.{name}": entry for entry in REFUSALS for name in entry.modules.split()}


def find(module: str) -> Refusal | None:
    """Why a module is out of scope, its full name given; None if it is not."""
    return _BY_MODULE.get(module)


def is_package(module: str) -> bool:
    """Whether modules that are out of scope lie below this one."""
    return any(name.startswith(f"{module}.") for name in _BY_MODULE)


def internal(name: str) -> type:
    """A class in place of a part that torch_xla's own implementation is made of."""
    why = "it is a part of another implementation"
    return refused(name, why, "Use the functions of its module that scripts call.")


def refused(name: str, why: str, instead: str) -> type:
    """A class in place of a class or a function: using it says why it is not there."""

    def refuse(cls: type, *args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedError(f"{name} was used: {why}.", instead)

    members = {"__new__": refuse, "__refused__": why, "__doc__": f"Refused: {why}. {instead}"}
    return type(name.rpartition(".")[2], (), members)
