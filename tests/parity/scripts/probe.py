"""Writes what it was given into the job's output, and a model; `--fail N` lets rank N fail."""

import json
import os
import pathlib
import socket
import sys
import time


def meet(index: int, count: int) -> None:
    """Return once all are here: each has found the others and written its own, as in training."""
    address = (json.loads(os.environ["TRCOMP_TOPOLOGY"])["hosts"][0]["address"], 7777)
    if index == 0:
        with socket.create_server(address) as server:
            for peer in [server.accept()[0] for _ in range(count - 1)]:
                peer.close()
        return
    while True:
        try:
            with socket.create_connection(address) as peer:
                peer.recv(1)
                return
        except ConnectionRefusedError:
            time.sleep(0.05)


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
if "RANK" in os.environ:
    meet(int(rank), int(os.environ["WORLD_SIZE"]))
else:
    hosts = json.loads(os.environ["SM_HOSTS"])
    meet(hosts.index(host), len(hosts))
if "--fail" in sys.argv and sys.argv[sys.argv.index("--fail") + 1] == rank:
    raise ValueError(f"rank {rank} was told to")
if "--exit" in sys.argv:
    sys.exit(int(sys.argv[sys.argv.index("--exit") + 1]))
