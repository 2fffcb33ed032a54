"""`torch_xla.core.xla_env_vars`: names of environment variables as constants of the same name."""

from __future__ import annotations

import dataclasses

from trcomp.env.variables import Identity

_NAMES = """
    TPUVM_MODE TPU_NUM_DEVICES CPU_NUM_DEVICES CLOUD_TPU_TASK_ID ACCELERATOR_TYPE WORKER_ID
    TPU_SKIP_MDS_QUERY TPU_ACCELERATOR_TYPE TPU_WORKER_ID TPU_WORKER_HOSTNAMES TPU_HOST_BOUNDS
    TPU_CHIPS_PER_HOST_BOUNDS TPU_CHIPS_PER_PROCESS_BOUNDS TPU_PROCESS_BOUNDS TPU_PROCESS_ADDRESSES
    TPU_VISIBLE_CHIPS TPU_PROCESS_PORT PJRT_DEVICE PJRT_SELECT_DEFAULT_DEVICE
    PJRT_LOCAL_PROCESS_RANK PJRT_LOCAL_PROCESS_COUNT PJRT_DYNAMIC_PLUGINS PJRT_CPU_ASYNC_CLIENT
    PJRT_DIST_SERVICE_ADDR
"""
globals().update({name: name for name in _NAMES.split()})
globals().update({field.name.upper(): field.name.upper() for field in dataclasses.fields(Identity)})
TPU_MESH_CTLER_ADDR = "TPU_MESH_CONTROLLER_ADDRESS"
TPU_MESH_CTLER_PORT = "TPU_MESH_CONTROLLER_PORT"
HOST_ORDINAL = "XRT_HOST_ORDINAL"
"""Of XRT's time; Lightning reads it from releases before 2.1."""
