"""Hosts and devices, laid out as ranks that every host counts alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trcomp.env.topology import Host, Topology, uniform
from trcomp.errors import ContractError

TOPOLOGIES = st.builds(
    Topology,
    hosts=st.lists(
        st.builds(Host, name=st.text(), address=st.text(), num_devices=st.integers(1, 8)),
        min_size=1,
        max_size=5,
    ).map(tuple),
    device_kind=st.sampled_from(["gpu", "cpu"]),
    network_interface=st.text(),
)


def test_ranks_are_counted_host_by_host() -> None:
    topology = uniform(["algo-1", "algo-10", "algo-2"], 2, "gpu")
    found = [(rank.rank, rank.host.name, rank.local_rank) for rank in topology.ranks()]
    assert found == [
        (0, "algo-1", 0),
        (1, "algo-1", 1),
        (2, "algo-10", 0),
        (3, "algo-10", 1),
        (4, "algo-2", 0),
        (5, "algo-2", 1),
    ]
    assert topology.world_size == 6
    assert [rank.rank for rank in topology.local_ranks(1)] == [2, 3]


def test_the_only_host_needs_no_name() -> None:
    assert uniform(["algo-1"], 1, "cpu").coordinator == "127.0.0.1:43857"
    assert uniform(["algo-1", "algo-2"], 1, "cpu").coordinator == "algo-1:43857"


def test_given_addresses_are_used() -> None:
    topology = uniform(["algo-1", "algo-2"], 1, "cpu", addresses={"algo-1": "127.1.2.3"})
    assert [host.address for host in topology.hosts] == ["127.1.2.3", "algo-2"]


@given(TOPOLOGIES)
def test_json_both_ways(topology: Topology) -> None:
    text = topology.to_json()
    assert Topology.from_json(text) == topology
    assert "\n" not in text


@given(TOPOLOGIES)
def test_every_rank_has_one_place(topology: Topology) -> None:
    ranks = topology.ranks()
    assert [rank.rank for rank in ranks] == list(range(topology.world_size))
    assert len({(rank.host_index, rank.local_rank) for rank in ranks}) == topology.world_size
    by_host = [r for i in range(len(topology.hosts)) for r in topology.local_ranks(i)]
    assert tuple(by_host) == ranks


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"hosts": 3}', '{"hosts": [], "x": 1}'])
def test_other_text_is_an_error(text: str) -> None:
    with pytest.raises(ContractError, match="topology is not readable"):
        Topology.from_json(text)
