"""accelerate's own checks, those of `accelerate test`; each rank leaves what failed, and why."""

import argparse
import importlib.util
import json
import traceback
from pathlib import Path

from accelerate import Accelerator
from accelerate.test_utils.scripts import test_script as checks

parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", type=Path, required=True)
place = parser.parse_args().output_dir

state = Accelerator().state
rank, several = state.process_index, state.num_processes > 1
wanted = [
    ("init_state_check",),
    ("process_execution_check",),
    ("test_split_between_processes_list",),
    ("test_split_between_processes_nested_dict",),
    ("test_split_between_processes_tensor",),
    ("test_split_between_processes_evenly",),
    ("rng_sync_check",),
    ("dl_preparation_check",),
    ("custom_sampler_check",),
    ("check_seedable_sampler",),
    ("check_seedable_sampler_with_data_seed",),
    *[("check_seedable_sampler_in_batch_sampler_shard",)] * several,
    ("training_check", False),
    ("training_check", True),
    ("test_trigger",),
    ("test_reinstantiated_state",),
]
if importlib.util.find_spec("datasets"):
    from datasets import Dataset

    wanted.insert(6, ("test_split_between_processes_dataset", Dataset))
failed = {}
for name, *arguments in wanted:
    try:
        getattr(checks, name)(*arguments)
    except Exception:
        failed[f"{name}{arguments or ''}"] = traceback.format_exc()
place.mkdir(parents=True, exist_ok=True)
(place / f"{rank}.json").write_text(json.dumps(failed))
