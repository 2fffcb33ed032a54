"""Writes what it was given into the job's output, and a model; `--fail N` lets rank N fail."""

import json
import os
import pathlib
import sys

base = pathlib.Path(os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml"))
rank = os.environ.get("RANK", "none")
host = os.environ["SM_CURRENT_HOST"]
config = {path.name: json.loads(path.read_text()) for path in (base / "input/config").iterdir()}
data = {
    str(path.relative_to(base)): path.read_text()
    for path in sorted((base / "input/data").rglob("*.txt"))
}
given = {
    "argv": sys.argv,
    "cwd": os.getcwd(),
    "path": sys.path[0],
    "environ": dict(os.environ),
    "config": config,
    "data": data,
    "places": sorted(str(path.relative_to(base)) for path in base.glob("*")),
}
output = pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"], f"{host}-{rank}.json")
output.write_text(json.dumps(given))
pathlib.Path(os.environ["SM_MODEL_DIR"], f"model-{host}-{rank}").write_text(rank)
print("given", host, rank, flush=True)
if "--fail" in sys.argv and sys.argv[sys.argv.index("--fail") + 1] == rank:
    raise ValueError(f"rank {rank} was told to")
if "--exit" in sys.argv:
    sys.exit(int(sys.argv[sys.argv.index("--exit") + 1]))
