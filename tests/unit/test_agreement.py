"""What ranks tell each other of their collectives, and what follows from it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trcomp.runtime.agreement import (
    Begun,
    Ledger,
    Record,
    awaited_in_vain,
    difference,
    first_difference,
    group_name,
    ranks_of,
    shown,
)


def ledger(*texts: str, group: tuple[int, ...] = (0, 1)) -> Ledger:
    made = Ledger()
    for number, text in enumerate(texts, start=1):
        made.begin(group, text, f"train.py:{number}")
    return made


def test_the_first_collective_that_differs_is_found_however_many_follow() -> None:
    ours, theirs = ledger("a", "b", "c", "d"), ledger("a", "x", "c")
    found = difference(ours.kept(), theirs.kept())
    assert found is not None
    assert [(one.number, one.text, one.line) for one in found] == [
        (2, "b", "train.py:2"),
        (2, "x", "train.py:2"),
    ]
    # The same third one is not the same: its digest is of all before it.
    assert ours.kept()[2].digest != theirs.kept()[2].digest
    assert difference(ours.kept(), ledger("a", "b").kept()) is None


def test_groups_are_numbered_apart() -> None:
    ours = ledger("a", "b")
    ours.begin((0,), "alone", "")
    assert ours.counts == {"0,1": 2, "0": 1}
    assert difference(ours.kept(), ledger("a", "b").kept()) is None


def test_a_record_survives_the_way_and_is_short() -> None:
    record = ledger(*["x" * 1000] * 50).record(place="saved #1", line="train.py:9")
    text = record.to_json()
    assert len(text) < 350
    read = Record.from_json(text)
    assert read.counts == {"0,1": 50} and read.place == "saved #1" and read.line == "train.py:9"
    assert [begun.number for begun in read.last] == list(range(35, 51))


def test_who_has_begun_less_and_will_not_go_on_is_awaited_in_vain() -> None:
    ours = ledger("a", "a", "a").record()
    assert awaited_in_vain(ours, 1, ledger("a", "a").record(ended=True)) == ours.last[2]
    assert awaited_in_vain(ours, 1, Record(ended=True)) == ours.last[0]
    assert awaited_in_vain(ours, 1, ledger("a", "a", "a").record(ended=True)) is None
    # Rank 2 has no part in it.
    assert awaited_in_vain(ours, 2, Record(ended=True)) is None


def test_the_first_operation_that_differs_is_named_with_both_lines() -> None:
    ours = [("mul", "a.py:1"), ("add", "a.py:2"), ("sum", "a.py:3")]
    theirs = [("mul", "a.py:1"), ("sum", "a.py:5")]
    assert first_difference(ours, theirs) == (2, ("add", "a.py:2"), ("sum", "a.py:5"))
    assert first_difference(ours, ours[:2]) == (3, ("sum", "a.py:3"), ("nothing more", ""))
    assert first_difference(ours, list(ours)) is None


def test_a_long_operation_is_shortened_for_a_reader() -> None:
    text = shown(("all_reduce -> " + "float32[8], " * 200 + "(reduce_type=sum)", "a.py:3"))
    assert len(text) < 200 and text.endswith("(reduce_type=sum) at a.py:3")
    assert shown(("add", "")) == "add"


def test_a_collective_knows_its_ranks() -> None:
    assert Begun("2,3", 1, "d", "").ranks == (2, 3)


@given(st.lists(st.integers(0, 40), unique=True, min_size=1) | st.sampled_from([range(8000)]))
def test_a_group_has_a_name_that_says_its_ranks(ranks: list[int] | range) -> None:
    assert ranks_of(group_name(tuple(ranks))) == tuple(ranks)


def test_many_ranks_have_a_short_name() -> None:
    assert group_name((0, 1)) == "0,1"
    assert group_name(tuple(range(8000))) == "0-7999"
    assert group_name(tuple(range(3, 8000, 8))) == "3-7995/8"
