"""The page of a job in a real browser: it shows, says nothing on the console, and fits a phone."""

from __future__ import annotations

import functools
import http.server
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.test_job_page import rank, record, report
from trcomp import job_page
from trcomp.backends.base import JobStatus

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(CHROMIUM is None, reason="NOT TESTED in a browser: no chromium here"),
]
_PHONE = 390
_WRAPPER = """<!doctype html><link rel="icon" href="data:,"><body style="margin:0">
<iframe id="page" src="page.html" style="width:{width}px;height:800px;border:0"></iframe>
<script>
document.getElementById("page").onload = event => {{
  const page = event.target.contentDocument;
  const charts = [...page.querySelectorAll("svg")].map(svg => svg.getBoundingClientRect());
  const visible = charts.filter(box => box.width > 100 && box.height > 20).length;
  document.body.dataset.found = page.documentElement.scrollWidth + " " + visible;
}};
</script>"""


@contextmanager
def _served(directory: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *words: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _browse(url: str, profile: Path) -> tuple[str, str]:
    """The document after its scripts have run, and what the browser logged."""
    assert CHROMIUM is not None
    quiet = ("gpu", "quic", "background-networking", "component-update", "sync")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--no-first-run"]
    command += [f"--disable-{what}" for what in quiet]
    command += [f"--user-data-dir={profile}", "--enable-logging=stderr", "--v=0"]
    command += ["--virtual-time-budget=5000", "--dump-dom", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr


def test_a_browser_shows_the_page_on_a_phone_too(tmp_path: Path) -> None:
    line = "[rank 0] step 1: loss 1.0"
    whole = report(rank(0), rank(1), num_ranks=2, steps=4, peak_rss_bytes=9e8)
    page = job_page.page(record(JobStatus.TRAINING, JobStatus.COMPLETED), whole, [line, line])
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    (tmp_path / "index.html").write_text(_WRAPPER.format(width=_PHONE), encoding="utf-8")
    with _served(tmp_path) as url:
        document, log = _browse(f"{url}/index.html", tmp_path / "profile")
    assert "CONSOLE" not in log
    found = re.search(r'data-found="(\d+) (\d+)"', document)
    assert found is not None
    assert int(found[1]) <= _PHONE, "something is wider than the phone"
    shown = ["Step time", "Throughput", "Where the time goes", "loss", "Memory"]
    assert int(found[2]) == len(shown), f"not all charts show: {shown}"
