"""When a node thinks that it was away."""

import asyncio

from services.store.presence import AWAY_S, Presence


def in_company() -> Presence:
    presence = Presence()
    presence.is_alone = lambda: False
    return presence


def test_looks_in_time_find_nothing() -> None:
    presence = in_company()
    assert not any(presence.is_away(n * AWAY_S * 0.9) for n in range(100))
    assert presence.epoch == 0


def test_a_jump_of_the_clock_is_an_absence_until_all_was_heard() -> None:
    presence = in_company()
    presence.is_away(1.0)
    assert [presence.is_away(2.0), presence.is_away(2.1)] == [True, True]
    assert presence.wanted.is_set()
    presence.back(presence.epoch)
    assert not presence.is_away(2.2)


def test_an_absence_in_the_middle_of_asking_is_asked_about_again() -> None:
    presence = in_company()
    presence.is_away(1.0)
    presence.is_away(2.0)
    before = presence.epoch
    presence.is_away(3.0)
    presence.back(before)
    assert presence.is_away(3.1)


def test_a_node_that_is_alone_has_nobody_to_ask() -> None:
    presence = Presence()
    presence.is_away(1.0)
    assert not presence.is_away(100.0)


def test_being_cut_off_counts_once_the_bus_is_back() -> None:
    presence = in_company()
    presence.look(1.0, is_connected=True)
    presence.look(1.1, is_connected=False)
    assert not presence.is_away(1.2)  # over a line all is as it was
    presence.look(1.3, is_connected=True)
    assert presence.is_away(1.4)


def test_the_first_message_after_a_cut_is_a_sign_already() -> None:
    presence = in_company()
    presence.look(1.0, is_connected=False)
    assert presence.is_away_on_bus(1.1)


async def test_who_waits_goes_on_when_the_node_is_back() -> None:
    presence = in_company()
    presence.leave()
    waiting = asyncio.create_task(presence.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    presence.back(presence.epoch)
    await waiting
