"""What a job costs as it grows: in step with its hosts and ranks, never with their square."""

from __future__ import annotations

import json

import pytest

from benchmarks import scale_page, simulation

pytestmark = pytest.mark.runtime


def test_what_ranks_say_to_each_other_grows_with_their_number() -> None:
    few, many = simulation.words(5), simulation.words(20)
    for occasion, said in few.items():
        assert said["requests"] > 0
        # Beside the numbers of ranks in keys, which grow by a digit.
        assert many[occasion]["requests"] <= 4.1 * said["requests"], occasion
        assert many[occasion]["bytes"] <= 4.5 * said["bytes"], occasion


def test_a_hosts_start_grows_with_the_hosts() -> None:
    few, many = simulation.bookkeeping(10), simulation.bookkeeping(40)
    assert many["names_asked_for_by_all"] == 40 + 39
    assert many["environment_bytes"] <= 4.5 * few["environment_bytes"]
    assert many["largest_variable_bytes"] <= 4.5 * few["largest_variable_bytes"]


def test_the_death_of_a_host_is_told_to_all_others() -> None:
    found = simulation.in_a_process("death", 10)
    assert found["hosts_told"] == 9
    assert found["noticed_seconds"] < 15


def test_the_death_of_a_rank_is_told_to_all_others() -> None:
    found = simulation.in_a_process("rank_death", 12)
    assert found["ranks_told"] == 12 * simulation.RANKS - 1
    assert found["blamed_right"]


def test_the_rank_that_hung_first_is_named_whoever_looks_first() -> None:
    found = simulation.in_a_process("silence", 20, 2)
    assert found["ranks_told"] == 20 * simulation.RANKS
    assert found["blamed_right"]


def test_a_host_carries_the_lines_of_all_its_ranks() -> None:
    found = simulation.in_a_process("one_host", 1000, 1)
    assert found["lines"] == 1000 * simulation.RANKS


def test_what_is_shown_of_a_large_job_does_not_grow_with_it() -> None:
    few, many = simulation.in_a_process("look", 40), simulation.in_a_process("look", 80)
    assert many["lines"] == 2 * few["lines"]
    assert many["top_lines"] == few["top_lines"] < 40
    assert many["page_bytes"] < 1.05 * few["page_bytes"]


def test_calls_for_a_log_grow_only_as_the_list_of_streams_does() -> None:
    few, many = simulation.in_a_process("calls", 200), simulation.in_a_process("calls", 800)
    assert many["calls_of_a_look"] - few["calls_of_a_look"] == (800 - 200) / 50


def test_hosts_that_watch_each_other_all_hear_of_a_failure() -> None:
    assert simulation.in_a_process("links", 12)["hosts_told"] == 11


def test_the_page_is_that_of_the_results() -> None:
    found = json.loads(scale_page.RESULTS.read_text(encoding="utf-8"))
    written = scale_page.PAGE.read_text(encoding="utf-8")
    assert scale_page.page(found) == written, "run `python -m benchmarks.scale_page`"
