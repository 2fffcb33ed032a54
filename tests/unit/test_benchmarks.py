"""How contestants' figures are told apart: choosing, ratios, pages. Nothing is measured."""

from __future__ import annotations

import io
import json
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import contest, training_page, training_step
from benchmarks.__main__ import main
from benchmarks.bars import Bar
from benchmarks.contest import PEERS, Contestant, Failed, Peer
from benchmarks.picture import picture

ROWS = [
    {
        "model": "vit",
        "peers": {
            "eager": {"step_ms": 100.0, "ratio": 1.0, "compiles": 0, "first_step_seconds": 0.1},
            "trcomp": {
                "step_ms": 50.0,
                "ratio": 0.5,
                "host_us": 2000,
                "compiles": 2,
                "first_step_seconds": 3.0,
                "peak_rss_mb": 900,
            },
        },
        "failures": {"openxla": "RuntimeError: <no>"},
    },
    {
        "model": "resnet18-64px",
        "peers": {
            "eager": {"step_ms": 10.0, "ratio": 1.0, "compiles": 0, "first_step_seconds": 0.1},
            "trcomp": {
                "step_ms": 80.0,
                "ratio": 8.0,
                "host_us": 1000,
                "compiles": 2,
                "first_step_seconds": 3.0,
            },
        },
        "failures": {},
    },
]
CONTESTANT = """
import json, sys
assert sys.argv[1] == "vit"
print(json.dumps({"ready": True, "versions": {"torch": "1"}}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if "report" in request:
        print(json.dumps({"compiles": 1, "operations": 3, "peak_rss_bytes": 10**6}), flush=True)
    elif request["steps"] > 4:
        raise ValueError("too many")
    else:
        steps = [[0.001, 0.002, 0.003]] * request["steps"]
        print(json.dumps({"steps": steps, "loss": 2.0}), flush=True)
"""


def test_a_ratio_is_the_geometric_mean_over_the_models_that_have_both() -> None:
    assert Bar("", "trcomp", "eager", "step_ms", 1).ratio(ROWS) == pytest.approx(2.0)
    assert Bar("", "trcomp", "eager", "step_ms", 1, True).ratio(ROWS) == pytest.approx(0.5)
    assert Bar("", "trcomp", "eager", "step_ms", 1, False).ratio(ROWS) == pytest.approx(8.0)
    assert Bar("", "trcomp", "flax", "step_ms", 1).ratio(ROWS) is None
    assert Bar("", "trcomp", "eager", "host_us", 1).ratio(ROWS) is None


def test_a_name_is_chosen_by_its_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("vit", "vit-tiny", "resnet18-64px", "resnet18-128px")
    assert contest.chosen("model", ["vit"], names) == ["vit"]
    assert contest.chosen("model", ["resnet18", "vit-"], names) == [*names[2:], "vit-tiny"]
    assert contest.chosen("model", None, names) == list(names)
    with pytest.raises(SystemExit) as caught:
        contest.chosen("model", ["bert"], names)
    assert caught.value.code == 64
    assert "there are vit, " in capsys.readouterr().err


def test_a_peer_without_its_environment_is_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = Peer(contest.ROOT / "build" / "peers" / "none" / "bin" / "python", "none")
    monkeypatch.setitem(PEERS, "flax", missing)
    assert training_step.takes_part(["eager", "flax"]) == ["eager"]
    assert "without flax: " in (told := capsys.readouterr().err)
    assert "make peers" in told


def test_the_page_shows_what_there_is_and_what_failed() -> None:
    page = training_page.section(ROWS, "today")
    assert "| vit | 100.0 ms | 0.50 |" in page
    assert "| resnet18-64px | 3.0 s, 2 |" in page
    assert "- vit, openxla: RuntimeError: <no>" in page
    assert "**flax**" not in page


def test_the_picture_cuts_long_bars_and_says_how_long_they_are() -> None:
    drawn = ElementTree.parse(io.StringIO(picture(ROWS))).getroot()
    texts = [element.text for element in drawn.iter() if element.text]
    assert {"vit", "resnet18-64px", "0.50", "8.00"} <= set(texts)


@pytest.mark.parametrize(
    "words", [["nothing"], ["scaling", "--peers", "eager"], ["training_step", "--models", "no"]]
)
def test_what_there_is_not_is_64(words: list[str]) -> None:
    try:
        code: object = main(words)
    except SystemExit as error:
        code = error.code
    assert code == 64


@pytest.fixture
def contestant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Contestant]:
    package = tmp_path / "benchmarks" / "peers"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "fake.py").write_text(CONTESTANT)
    monkeypatch.setattr(contest, "ROOT", tmp_path)
    one = Contestant(Peer(Path(sys.executable), "fake"), "vit")
    yield one
    one.close()


def test_a_contestant_runs_what_it_is_told(contestant: Contestant) -> None:
    contestant.get_ready()
    contestant.first()
    contestant.warm_up(2, 60)
    contestant.turn(3, 60)
    assert contestant.versions == {"torch": "1"}
    assert (len(contestant.early), [len(turn) for turn in contestant.turns]) == (3, [3])
    assert contestant.turns[0][0].device == 0.003
    assert contestant.loss == 2.0
    contestant.report()
    assert contestant.counts["operations"] == 3


def test_one_that_ends_says_its_last_words(contestant: Contestant) -> None:
    contestant.get_ready()
    with pytest.raises(Failed, match="ValueError: too many"):
        contestant.turn(10, 60)
    with pytest.raises(Failed, match="ValueError: too many"):
        contestant.turn(1, 60)


def test_results_that_are_committed_make_the_page() -> None:
    for path in (contest.ROOT / "benchmarks" / "results").glob("*.json"):
        found = json.loads(path.read_text())
        assert {"date", "cpus", "torch"} <= set(found["machine"])
        assert found["rows"]
