"""Who holds what, as routers that are not ours may ask."""

import pytest

from moonpool.messages.errors import CallerError
from moonpool.messages.where import WhereReply, WhereRequest
from services.conductor.where import KEYS_MAX, where
from tests.unit.conductor.driver import Mesh, chain_keys


def ask(mesh: Mesh, keys: bytes) -> WhereReply:
    return where(WhereRequest(keys), mesh.core.fleet, mesh.core.holdings, "c1")


def shown(reply: WhereReply) -> list[tuple[str, str, int, int]]:
    return [(each.owner, each.tier, each.prefix_blocks, each.blocks) for each in reply.holders]


def make_mesh() -> Mesh:
    mesh = Mesh()
    mesh.join("prefill", "P", host="h1")
    mesh.join("decode", "D", host="h2")
    mesh.join("store", "N", host="h3")
    return mesh


def test_holders_come_longest_prefix_first_each_with_its_tier() -> None:
    mesh = make_mesh()
    mesh.tell("P", "hbm", stored=chain_keys("doc", 0, 10))
    mesh.tell("N", "dram", stored=chain_keys("doc", 0, 20))
    mesh.tell("N", "nvme", stored=chain_keys("doc", 0, 40))
    reply = ask(mesh, chain_keys("doc", 0, 40))
    assert reply.blocks == 40
    assert shown(reply) == [("N", "nvme", 40, 40), ("N", "dram", 20, 20), ("P", "hbm", 10, 10)]
    assert [(each.role, each.host) for each in reply.holders][-1] == ("prefill", "h1")


def test_a_hole_ends_the_prefix_and_what_lies_behind_still_counts() -> None:
    mesh = make_mesh()
    mesh.tell("P", "hbm", stored=chain_keys("doc", 0, 64))
    mesh.tell("P", "hbm", removed=chain_keys("doc", 7, 8))
    mesh.tell("D", "hbm", stored=chain_keys("doc", 30, 40))
    assert shown(ask(mesh, chain_keys("doc", 0, 64))) == [("P", "hbm", 7, 63), ("D", "hbm", 0, 10)]


def test_suspect_and_dead_owners_are_left_out() -> None:
    mesh = make_mesh()
    for id in ("P", "D"):
        mesh.tell(id, "hbm", stored=chain_keys("doc", 0, 4))
    mesh.silent.add("P")
    mesh.wait(4.0)
    assert shown(ask(mesh, chain_keys("doc", 0, 4))) == [("D", "hbm", 4, 4)]
    mesh.core.proven_dead("D", mesh.registrations["D"].epoch)
    assert shown(ask(mesh, chain_keys("doc", 0, 4))) == []


@pytest.mark.parametrize("keys", [b"", b"x" * 15, b"x" * 16 * (KEYS_MAX + 1)])
def test_a_question_that_is_no_keys_is_refused(keys: bytes) -> None:
    with pytest.raises(CallerError):
        ask(make_mesh(), keys)
