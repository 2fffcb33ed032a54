"""What may differ between places, each with its reason; all else must be alike."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

MAY_DIFFER = {
    r"environ/TRCOMP_(ERROR_FILE|PROGRESS_DIR|LOG_DIR)": "Directories of one run.",
    r"environ/(SAGEMAKER_BASE_DIR|TRCOMP_HOST_ADDRESSES)": "Where processes stand for containers.",
    r"environ/(PATH|HOME|USER|LOGNAME|HOSTNAME|PWD|OLDPWD|SHLVL|_|LANG)": "The machine's own.",
    r"environ/(PIP|SSL)_.*": "The image's certificates.",
    r"environ/(AWS_.*|SAGEMAKER_REGION|TRAINING_JOB_ARN)|.*/sagemaker_region": "AWS has regions.",
    r".*/(current_)?instance_type|environ/SM_CURRENT_INSTANCE_TYPE": "The word for the place.",
    r".*/network_interface(_name)?|environ/SM_NETWORK_INTERFACE_NAME": "The place's network.",
    r"environ/JAX_COORDINATOR_BIND_ADDRESS": "Hosts that are processes have one loopback network.",
    r"environ/SM_NUM_CPUS|environ/SM_TRAINING_ENV/num_cpus": "Such hosts share its cores.",
    r".*/sagemaker_training_compiler_cache": "A container finds the machine's own by its mount.",
    r"environ/(GLOO|NCCL|TP)_SOCKET_IFNAME": "The place's network.",
    r".*/checkpointconfig.json/S3Uri": "On this machine, or in S3.",
    r".*/checkpointconfig.json/LocalPath": "Left to SageMaker's default, which is the same.",
    r".*/sagemaker_submit_directory|.*/module_dir|environ/SM_MODULE_DIR": "How SageMaker has code.",
    r".*/(channels|input_data_config|inputdataconfig.json|SM_INPUT_DATA_CONFIG)/code(/.*)?": (
        "SageMaker brings the code by a channel."
    ),
    r"environ/SM_CHANNEL_CODE": "SageMaker brings the code by a channel.",
}
"""By the paths of values, as ``environ/HOME`` or ``config/resourceconfig.json/hosts``."""

_PATTERN = re.compile("|".join(f"(?:{pattern})" for pattern in MAY_DIFFER))
_JSON = re.compile(r"[\[{]")


def comparable(given: Mapping[str, Any], machine: Mapping[str, str]) -> dict[str, Any]:
    """What a script was given, without what may differ, by the paths of values.

    Args:
        given: As the probe wrote it.
        machine: Variables that are there without any job.
    """
    environ = given["environ"]
    base = environ.get("SAGEMAKER_BASE_DIR", "/opt/ml")
    own = {n: v for n, v in environ.items() if machine.get(n) != v}
    text = json.dumps({**given, "environ": own}).replace(base, "/opt/ml")
    for host in json.loads(environ.get("TRCOMP_TOPOLOGY", '{"hosts": []}'))["hosts"]:
        text = re.sub(rf"(?<![\d.]){re.escape(host['address'])}(?![\d.])", host["name"], text)
    return {k: v for k, v in _flat(json.loads(text), "") if not _PATTERN.fullmatch(k)}


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Each value with its path; JSON in a variable is taken apart too."""
    if isinstance(value, str) and _JSON.match(value):
        try:
            value = json.loads(value)
        except ValueError:
            yield path, value
            return
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{path}/{key}" if path else key)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for index, item in enumerate(value):
            yield from _flat(item, f"{path}/{index}")
    elif path.endswith("SM_CHANNELS"):
        yield path, [name for name in value if name != "code"]
    elif path.endswith("PYTHONPATH"):
        # trcomp that a container was given is behind the job's code.
        yield path, value.partition(":")[0]
    else:
        yield path, value
