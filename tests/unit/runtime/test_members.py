"""Hearts and members over a bus, on virtual time."""

import asyncio
from pathlib import Path

import pytest

from moonpool.bus import MemoryBroker, MemoryBus
from moonpool.clock import VirtualClock
from moonpool.messages.subjects import Subjects
from moonpool.runtime import Change, Heart, Members
from moonpool.settings import SettingsError
from tests.support.registrations import make_registration

SUBJECTS = Subjects()
COMPANY = ["n1", "n2"]


async def test_whoever_starts_late_knows_everybody_after_a_second() -> None:
    broker, clock = MemoryBroker(), VirtualClock()
    async with Heart(MemoryBus(broker), SUBJECTS, clock, make_registration(), "ready"):
        await clock.advance(5.3)
        async with Members(MemoryBus(broker), SUBJECTS, clock) as members:
            await clock.advance(1.0)
            assert [member.id for member in members.usable("store", "decode")] == ["n1"]


async def test_a_change_of_state_is_known_at_once_and_a_goodbye_ends_it() -> None:
    broker, clock = MemoryBroker(), VirtualClock()
    changes: list[Change] = []
    members = Members(MemoryBus(broker), SUBJECTS, clock, on_change=changes.append)
    async with members:
        async with Heart(MemoryBus(broker), SUBJECTS, clock, make_registration()) as heart:
            await clock.advance(0.0)
            assert members.of("store")[0].state == "starting"
            heart.set_state("ready")
            await clock.advance(0.0)
            assert members.of("store")[0].state == "ready"
            with pytest.raises(ValueError, match="happy"):
                heart.set_state("happy")
        await clock.advance(0.0)
        assert members.all() == []
    assert [str(change.kind) for change in changes] == ["joined", "state", "left"]
    assert clock.stats()["sleepers"] == 0


async def test_a_heart_that_stops_makes_suspect_then_forgotten() -> None:
    broker, clock = MemoryBroker(), VirtualClock()
    bus = MemoryBus(broker)
    async with Members(MemoryBus(broker), SUBJECTS, clock) as members:
        heart = Heart(bus, SUBJECTS, clock, make_registration(), "ready")
        await heart.start()
        await clock.advance(2.0)
        await bus.close()  # cut off: it beats on, and nobody hears it
        await clock.advance(3.6)
        assert members.usable("store") == []
        assert members.stats() == {"members": 1, "suspect": 1, "malformed": 0}
        await clock.advance(30.0)
        assert members.all() == []
        assert heart.stats()["lost"] > 10
        await heart.close()


async def test_what_is_no_heartbeat_is_counted_and_passed_over() -> None:
    broker, clock = MemoryBroker(), VirtualClock()
    bus = MemoryBus(broker)
    async with Members(MemoryBus(broker), SUBJECTS, clock) as members:
        await bus.publish(SUBJECTS.heartbeat, b"junk")
        await bus.publish(SUBJECTS.goodbye, b"")
        await clock.advance(0.0)
        assert members.stats()["malformed"] == 2


async def test_the_state_file_says_what_the_heart_says_while_it_is_connected(
    tmp_path: Path,
) -> None:
    clock, bus, file = VirtualClock(), MemoryBus(MemoryBroker()), tmp_path / "state"
    heart = Heart(bus, SUBJECTS, clock, make_registration(), state_file=str(file))
    async with heart:
        assert file.read_text() == "starting\n"
        heart.set_state("ready")
        await clock.advance(0.0)
        assert file.read_text() == "ready\n"
        file.unlink()
        await clock.advance(1.0)
        assert file.read_text() == "ready\n"
        await bus.close()
        file.unlink()
        await clock.advance(3.0)
        assert not file.exists()


async def test_a_state_file_that_can_not_be_written_stops_the_start_by_name() -> None:
    bus = MemoryBus(MemoryBroker())
    heart = Heart(bus, SUBJECTS, VirtualClock(), make_registration(), state_file="/nowhere/state")
    with pytest.raises(SettingsError, match="MOONPOOL_STATE_FILE='/nowhere/state'"):
        await heart.start()


async def test_whoever_starts_late_calls_the_roll_and_need_not_wait() -> None:
    broker, clock = MemoryBroker(), VirtualClock()
    async with Heart(MemoryBus(broker), SUBJECTS, clock, make_registration(), "ready"):
        await clock.advance(5.3)
        async with Members(MemoryBus(broker), SUBJECTS, clock) as members:
            await clock.advance(0.0)
            assert [member.id for member in members.usable("store")] == ["n1"]


async def test_a_roll_is_answered_by_the_roles_that_were_called_and_once_for_many() -> None:
    broker, clock = MemoryBroker(), VirtualClock()
    store = Heart(MemoryBus(broker), SUBJECTS, clock, make_registration(), "ready")
    decode = Heart(MemoryBus(broker), SUBJECTS, clock, make_registration("d1", "decode"), "ready")
    async with store, decode:
        many = [Members(MemoryBus(broker), SUBJECTS, clock, calls=["store"]) for _ in range(20)]
        for each in many:
            await each.start()
        await clock.advance(0.2)
        assert all([m.id for m in each.all()] == ["n1"] for each in many)
        assert store.stats()["beats"] <= 3
        assert decode.stats()["beats"] == 1
        await MemoryBus(broker).publish(SUBJECTS.roll, b"junk")
        await clock.advance(0.0)
        assert store.stats()["malformed"] == 1
        for each in many:
            await each.close()


async def test_all_are_gathered_once_each_that_another_hears_was_heard() -> None:
    broker, clock = MemoryBroker(), VirtualClock()
    first = Heart(
        MemoryBus(broker), SUBJECTS, clock, make_registration(), "ready", company=lambda: COMPANY
    )
    second = Heart(MemoryBus(broker), SUBJECTS, clock, make_registration("n2"), "ready")
    members = Members(MemoryBus(broker), SUBJECTS, clock)
    async with first, members:
        await clock.advance(0.1)
        assert not await gathered(clock, members, 0.2)
        assert members.company("store") == []  # a part of all is not told for all
        async with second:
            assert await gathered(clock, members, 0.2)
            assert members.company("store") == COMPANY
            assert not members.is_gathered("decode")


async def test_one_that_stands_still_holds_nobody_up_for_longer_than_a_beat_takes() -> None:
    broker, clock = MemoryBroker(), VirtualClock()
    first = Heart(
        MemoryBus(broker), SUBJECTS, clock, make_registration(), "ready", company=lambda: COMPANY
    )
    async with first, Members(MemoryBus(broker), SUBJECTS, clock) as members:
        started_s = clock.now()
        assert await gathered(clock, members, 5.0)
        assert clock.now() - started_s < 1.5


async def test_where_nobody_tells_its_company_everybody_gets_the_time_to_beat() -> None:
    broker, clock = MemoryBroker(), VirtualClock()
    async with Members(MemoryBus(broker), SUBJECTS, clock) as members:
        assert not await gathered(clock, members, 0.9)
        assert await gathered(clock, members, 0.5)
        assert members.company("store") == []


async def gathered(clock: VirtualClock, members: Members, within_s: float) -> bool:
    waiting = asyncio.create_task(members.gather("store", within_s))
    while not waiting.done():
        await clock.advance(0.05)
    return await waiting
