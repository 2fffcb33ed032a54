"""Takes docs/job-page.png and docs/job-page-phone.png: the page of a job that trains for real.

Needs Chromium; `make screenshots` runs it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from trcomp import Estimator, Job, TrainingCompilerConfig

_DOCS = Path(__file__).parent
_DESK, _PHONE = (1000, 1500), (390, 1500)
# A window of a browser is wider than a phone; a frame in it need not be.
_FRAME = """<!doctype html><body style="margin:0;overflow:hidden;text-align:center">
<iframe src="page.html" scrolling="no" style="border:0;width:{0}px;height:{1}px"></iframe>"""


def main() -> None:
    """Train, then take both pictures."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("Chromium is needed: it is in none of PATH's directories.")
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TRCOMP_HOME"] = scratch
        place = Path(scratch)
        (place / "page.html").write_text(_demo().page(), encoding="utf-8")
        for name, size in (("job-page", _DESK), ("job-page-phone", _PHONE)):
            (place / "frame.html").write_text(_FRAME.format(*size), encoding="utf-8")
            _take(browser, place, _DOCS / f"{name}.png", size)


def _demo() -> Job:
    estimator = Estimator(
        entry_point="train.py",
        source_dir=str(_DOCS.parent / "examples" / "vit"),
        compiler_config=TrainingCompilerConfig(profile_steps=(20, 25), cache="off"),
        environment={"GPU_NUM_DEVICES": "2"},
        hyperparameters={"steps": 60},
    )
    estimator.fit(job_name="vit")
    return Job.attach("process://vit")


def _take(browser: str, place: Path, target: Path, size: tuple[int, int]) -> None:
    width, height = size
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={place / 'profile'}", f"--window-size={max(width, 500)},{height}"]
    command += ["--virtual-time-budget=3000", f"--screenshot={target}"]
    subprocess.run(
        [*command, (place / "frame.html").as_uri()], check=True, timeout=120, capture_output=True
    )
    print(target, target.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
