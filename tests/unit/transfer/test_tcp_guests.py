"""Who may stay at a tcp owner, and who goes for another."""

import socket
from collections.abc import Iterator

import pytest

from moonpool.transfer.transports import tcp_guests
from moonpool.transfer.transports.tcp_guests import HELLO_S, IDLE_MIN_S, PROOF_S, Guest, Guests

ROOM = 3


class House:
    """Guests, each with the other end of its stream."""

    def __init__(self) -> None:
        self.guests = Guests()
        self.ends: dict[Guest, socket.socket] = {}

    def enter(
        self, now_s: float, *, proven: bool = False, idle_since_s: float = 0.0
    ) -> Guest | None:
        ours, theirs = socket.socketpair()
        guest = self.guests.admit(ours, now_s)
        if guest is None:
            ours.close()
            theirs.close()
            return None
        guest.named = guest.proven = proven
        guest.idle_since_s = idle_since_s
        self.ends[guest] = theirs
        return guest

    def has_ended(self, guest: Guest | None) -> bool:
        assert guest is not None
        end = self.ends[guest]
        end.setblocking(False)
        try:
            return end.recv(1) == b""
        except BlockingIOError:
            return False

    def close(self) -> None:
        for guest, theirs in self.ends.items():
            guest.sock.close()
            theirs.close()


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setattr(tcp_guests, "STREAMS_MAX", ROOM)
    made = House()
    yield made
    made.close()


def test_a_stream_that_only_greets_is_ended_in_time(house: House) -> None:
    guest = house.enter(10.0)
    assert house.guests.due_in_s(10.0) == HELLO_S
    assert house.guests.sweep(10.0 + HELLO_S - 0.1) == 0
    assert not house.has_ended(guest)
    assert house.guests.sweep(10.0 + HELLO_S) == 1
    assert house.has_ended(guest)
    assert len(house.guests) == 0
    assert house.guests.due_in_s(99.0) is None


def test_one_that_has_a_name_and_shows_no_capability_has_longer_and_not_for_ever(
    house: House,
) -> None:
    guest = house.enter(0.0)
    assert guest is not None
    guest.named = True
    assert house.guests.sweep(HELLO_S) == 0
    assert house.guests.due_in_s(HELLO_S) == PROOF_S - HELLO_S
    assert house.guests.sweep(PROOF_S) == 1
    assert house.has_ended(guest)


def test_one_that_has_shown_a_capability_may_be_idle_while_there_is_room(house: House) -> None:
    guest = house.enter(0.0, proven=True, idle_since_s=1.0)
    assert house.guests.sweep(1e6) == 0
    assert not house.has_ended(guest)
    assert house.guests.due_in_s(1e6) is None


def test_who_has_shown_nothing_goes_first_when_there_is_no_room(house: House) -> None:
    idle = house.enter(0.0, proven=True, idle_since_s=1.0)
    stranger = house.enter(2.0)
    younger = house.enter(3.0)
    assert house.enter(4.0, proven=True) is not None
    assert house.has_ended(stranger)
    assert not house.has_ended(younger)
    assert not house.has_ended(idle)
    assert house.guests.made_room == 1


def test_then_who_was_idle_for_longest(house: House) -> None:
    at_work = house.enter(0.0, proven=True)
    lately = house.enter(0.0, proven=True, idle_since_s=8.0)
    long_ago = house.enter(0.0, proven=True, idle_since_s=5.0)
    assert house.enter(10.0) is not None
    assert house.has_ended(long_ago)
    assert not house.has_ended(lately)
    assert not house.has_ended(at_work)


def test_nobody_goes_who_is_at_work_or_was_a_moment_ago(house: House) -> None:
    for _ in range(ROOM):
        assert house.enter(0.0, proven=True, idle_since_s=5.0) is not None
    assert house.enter(5.0 + IDLE_MIN_S / 2) is None
    assert house.enter(5.0 + IDLE_MIN_S) is not None


def test_what_was_handed_over_is_no_guest_any_more(house: House) -> None:
    line = house.enter(0.0)
    assert line is not None
    assert house.guests.hand_over(line)
    assert house.guests.sweep(1e6) == 0
    for _ in range(3 * ROOM):
        house.enter(1.0)
    house.guests.close()
    assert not house.has_ended(line)


def test_what_had_to_go_is_not_handed_over(house: House) -> None:
    late = house.enter(0.0)
    assert late is not None
    house.guests.sweep(HELLO_S)
    assert not house.guests.hand_over(late)


def test_a_stream_that_had_to_go_while_it_turned_to_tls_is_ended_there(house: House) -> None:
    guest = house.enter(0.0)
    assert guest is not None
    house.guests.sweep(HELLO_S)
    safe, other = socket.socketpair()
    with other:
        old = guest.sock
        house.guests.wrapped(guest, safe)
        assert other.recv(1) == b""
        old.close()


def test_nobody_comes_in_once_it_is_closed(house: House) -> None:
    guest = house.enter(0.0)
    house.guests.close()
    assert house.has_ended(guest)
    assert house.enter(1.0) is None
