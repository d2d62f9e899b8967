"""Which NICs an engine has, and which of ours goes with which of the peer's."""

import ipaddress
import socket

import pytest

from moonpool.transfer import BadTransfer
from moonpool.transfer.spraying import LocalNic, pair_up
from moonpool.transfer.transports.nics import address_of, find_nics, own_addresses, split_hosts


def nic(name: str, network: str = "", address: str = "") -> LocalNic:
    interface = ipaddress.ip_interface(network) if network else None
    return LocalNic(name, address or (str(interface.ip) if interface else ""), interface)


RAILS = [nic("eth0", "10.0.0.1/24"), nic("eth1", "10.0.1.1/24")]


def pairs(local: list[LocalNic], remote: list[str]) -> list[tuple[int, int]]:
    return [(pair.local, pair.remote) for pair in pair_up(local, remote) if not pair.spare]


def test_nics_on_one_link_go_together() -> None:
    assert pairs(RAILS, ["10.0.1.2", "10.0.0.2"]) == [(1, 0), (0, 1)]
    found = pair_up(RAILS, ["10.0.1.2", "10.0.0.2"])
    assert all(pair.on_link for pair in found)
    assert not any(pair.spare for pair in found)  # nothing else is on a common link


def test_nics_behind_routers_go_together_by_number_with_spares_crossed() -> None:
    found = pair_up(RAILS, ["192.168.7.2", "192.168.8.2"])
    assert [(p.local, p.remote, p.spare, p.on_link) for p in found] == [
        (0, 0, False, False),
        (1, 1, False, False),
        (0, 1, True, False),
        (1, 0, True, False),
    ]


def test_nics_in_one_network_go_together_by_number() -> None:
    flat = [nic("eth0", "10.0.0.1/16"), nic("eth1", "10.0.0.2/16")]
    assert pairs(flat, ["10.0.0.8", "10.0.0.9"]) == [(0, 0), (1, 1)]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (1, 3, [(0, 0), (0, 1), (0, 2)]),
        (3, 1, [(0, 0), (1, 0), (2, 0)]),
        (2, 3, [(0, 0), (1, 1), (0, 2)]),
        (3, 2, [(0, 0), (1, 1), (2, 0)]),
    ],
)
def test_every_nic_of_either_side_is_in_a_pair(
    ours: int, theirs: int, expected: list[tuple[int, int]]
) -> None:
    local = [nic(f"mlx5_{i}") for i in range(ours)]
    assert pairs(local, [""] * theirs) == expected


def test_spares_are_as_many_as_pairs_and_give_every_nic_another() -> None:
    found = pair_up([nic(f"mlx5_{i}") for i in range(8)], [""] * 8)
    spares = [(pair.local, pair.remote) for pair in found if pair.spare]
    assert len(spares) == 8
    assert {i for i, _ in spares} == {j for _, j in spares} == set(range(8))


def test_families_do_not_mix_while_there_is_a_choice() -> None:
    both = [nic("eth0", "10.0.0.1/24"), nic("eth0", "fd00::1/64")]
    assert pairs(both, ["fd00::2", "10.0.0.2"]) == [(1, 0), (0, 1)]
    assert pairs(both[:1], ["fd00::2"]) == [(0, 0)]


def test_a_name_goes_with_anybody() -> None:
    assert pairs(RAILS, ["store-1", "store-1"]) == [(0, 0), (1, 1)]


def test_hosts_are_split_at_commas_and_lose_their_brackets() -> None:
    assert split_hosts("eth0, [fd00::1],10.0.0.1,") == ["eth0", "fd00::1", "10.0.0.1"]
    assert split_hosts("") == []


def test_an_address_leads_to_its_interface() -> None:
    (found,) = find_nics(["127.0.0.1"])
    assert found.name in [name for _, name in socket.if_nameindex()]
    assert found.network is not None
    assert found.network.ip.is_loopback


def test_any_loopback_address_is_on_the_loopback_interface() -> None:
    first, second = find_nics(["127.0.0.1", "127.0.0.77"])
    assert first.name == second.name
    assert second.address == "127.0.0.77"


def test_an_interface_leads_to_its_address() -> None:
    (loopback,) = find_nics(["127.0.0.1"])
    assert find_nics([loopback.name])[0].address in own_addresses()
    assert address_of(loopback.name) in own_addresses()
    assert address_of("10.9.8.7") == "10.9.8.7"


@pytest.mark.parametrize("host", ["192.0.2.77", "no-such-interface.invalid", "fd99::1"])
def test_a_host_that_is_none_of_ours_is_refused_by_name(host: str) -> None:
    with pytest.raises(BadTransfer) as refusal:
        find_nics([host])
    assert host in refusal.value.message
