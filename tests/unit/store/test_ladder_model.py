"""The core with two lower tiers against a dictionary, over thousands of random steps.

Goal: whatever is read under a lease that ended well is exactly what was committed under that key,
wherever it has been meanwhile; what was removed never comes back, over restarts included.
Method: a driver puts, reads and removes, and plays the shell: it makes the moves in random order,
some fail, some find damage, tiers go away and return, and now and then the node dies.
"""

import random
from collections.abc import Callable

import pytest

from moonpool.cache import ADMISSION_NAMES, LruPolicy
from moonpool.kv import BlockKey
from moonpool.kv.checksum import bad_chunks, chunk_checksums
from moonpool.messages.ids import TenantId
from moonpool.messages.store import GetSlot, PutEndItem, PutItem
from services.store.admission import WriteBudget
from services.store.core import StoreCore
from services.store.limits import Limits
from services.store.moves import Demotion, Descent, Erasure, Move, Outcome, Promotion
from services.store.shelf import Shelf
from services.store.tiers import DramTier, LowerTier, NvmeTier, OssTier
from services.store.tiers.vault import Item

PAGE = 4096
SIZE = 3 * PAGE - 64
CHUNK = SIZE // 4
TENANT = TenantId("t")
DRAM_PAGES, NVME_PAGES, OSS_BYTES = 24, 60, 40 * PAGE
STEPS = 3_000


class Disk:
    """What outlives the node: records of one tier, by place."""

    def __init__(self, tier: Callable[[], LowerTier]) -> None:
        self.make_tier = tier
        self.records: dict[int, tuple[Item, bytes, bytes]] = {}  # item, checksums, bytes

    def items(self) -> list[Item]:
        """Oldest first; of two for one key, the newer."""
        newest: dict[BlockKey, Item] = {}
        for item, _, _ in sorted(self.records.values(), key=lambda each: each[0].facts.serial):
            newest[item.facts.key] = item
        return list(newest.values())


class World:
    outcomes = (12, 1, 1)  # weights of done, lost, failed

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.now = 0.0
        self.versions = 0
        self.disks = {
            "nvme": Disk(lambda: NvmeTier(NVME_PAGES * PAGE)),
            "oss": Disk(lambda: OssTier(OSS_BYTES)),
        }
        self.value: dict[BlockKey, bytes] = {}  # what was committed last and not removed
        self.lives = 0
        self.begin_life()

    def begin_life(self) -> None:
        self.lives += 1
        self.segment = bytearray(DRAM_PAGES * PAGE)
        self.moves: list[Move] = []
        self.leases: list[tuple[int, list[tuple[BlockKey, GetSlot, bytes]]]] = []
        self.told: dict[str, set[BlockKey]] = {"nvme": set(), "oss": set()}
        shelves = []
        for disk in self.disks.values():
            tier = disk.make_tier()
            shelves.append(
                Shelf(
                    tier,
                    headroom=0.1,
                    budget=WriteBudget(tier.bytes_total, 0.0),
                    first_serial=self.lives << 32,
                )
            )
        uses, filters = self.choose.choice([1, 2]), self.choose.choice(ADMISSION_NAMES)
        limits = Limits(headroom=0.2, demote_after_uses=uses, demote_by=filters)
        self.core = StoreCore(DramTier(DRAM_PAGES * PAGE), LruPolicy(), limits, shelves)
        for shelf in shelves:
            shelf.set_condition(online=True, writable=True, health="ok")
            self.load(shelf)

    def load(self, shelf: Shelf) -> None:
        disk = self.disks[shelf.name]
        items = disk.items()
        self.core.ladder.load(shelf, items, self.now)
        shelf.end_load()
        moved = {}
        for item in items:  # the ledger may have given it another place
            record = shelf.records[item.facts.key]
            moved[record.item.place] = (record.item, *disk.records[item.place][1:])
        disk.records = moved

    # --- what readers and writers do ---

    def run(self) -> list[BlockKey]:
        numbers = self.choose.sample(range(14), self.choose.randint(1, 4))
        return [BlockKey(n.to_bytes(16, "big")) for n in numbers]

    def put(self) -> None:
        keys = self.run()[:2]
        put, slots = self.core.put_start(
            TENANT, [PutItem(k, SIZE, CHUNK) for k in keys], 9.0, self.now
        )
        items = []
        for key, slot in zip(keys, slots, strict=True):
            if slot.status != "ok":
                continue
            self.versions += 1
            data = random.Random(self.versions).randbytes(SIZE)
            self.segment[slot.offset : slot.offset + SIZE] = data
            sums = chunk_checksums(memoryview(data), CHUNK)
            items.append(PutEndItem(key, slot.generation, sums))
            self.value[key] = data
        if items:
            commit = self.core.begin_commit(put, items, self.now)
            results = self.core.finish_commit(commit, [True] * len(items), self.now)
            assert set(results) == {"committed"}

    def begin_read(self) -> None:
        keys = self.run()
        lease, slots = self.core.get_start(TENANT, keys, 50.0, self.now)
        for _ in range(self.choose.randint(0, 4)):
            self.take_moves()
            self.make_a_move()
            lease = self.core.get_more(lease, keys, slots, 50.0, self.now)
        hits = [
            (k, s, self.value[k]) for k, s in zip(keys, slots, strict=True) if s.status == "hit"
        ]
        assert bool(lease) == bool(hits)
        if lease:
            self.leases.append((lease, hits))

    def end_read(self) -> None:
        if not self.leases:
            return
        lease, hits = self.leases.pop(self.choose.randrange(len(self.leases)))
        read = [bytes(self.segment[s.offset : s.offset + s.size_bytes]) for _, s, _ in hits]
        if not self.core.get_end(lease, self.now):
            return  # too late: void
        for (_, slot, want), got in zip(hits, read, strict=True):
            assert got == want
            assert not bad_chunks(memoryview(got), slot.chunk_bytes, slot.checksums)

    def remove(self) -> None:
        keys = self.run()[:1]
        self.core.remove(TENANT, keys, self.now)
        for key in keys:
            self.value.pop(key, None)
            assert self.core.get_start(TENANT, [key], 0.0, self.now)[1][0].status == "miss"
        self.take_moves()
        erasures = [m for m in self.moves if isinstance(m, Erasure) and m.record.key in keys]
        for move in erasures:  # the reply waits for them
            self.moves.remove(move)
            self.erase(move, Outcome.DONE)

    def die(self) -> None:
        """Between any two steps; writes under way may have arrived or not."""
        self.take_moves()
        removed = {r.key for s in self.core.ladder.shelves for r in s.gone}
        for move in self.moves:
            if isinstance(move, Demotion) and self.choose.random() < 0.5:
                self.write(move.shelf, move.record.item, self.bytes_of(move))
        for disk in self.disks.values():  # removed while a tier was away: see the README
            disk.records = {
                place: each
                for place, each in disk.records.items()
                if each[0].facts.key not in removed or each[0].facts.key in self.value
            }
            stale = [
                place
                for place, (item, _, data) in disk.records.items()
                if self.value.get(item.facts.key) != data
            ]
            for place in stale:
                del disk.records[place]
        kept = {i.facts.key for disk in self.disks.values() for i in disk.items()}
        self.value = {key: data for key, data in self.value.items() if key in kept}
        self.begin_life()

    # --- what the shell does ---

    def take_moves(self) -> None:
        self.moves += self.core.ladder.take_moves()

    def bytes_of(self, move: Demotion) -> bytes:
        return bytes(self.segment[move.obj.place : move.obj.place + move.obj.size_bytes])

    def write(self, shelf: Shelf, item: Item, data: bytes) -> None:
        sums = chunk_checksums(memoryview(data), CHUNK)
        self.disks[shelf.name].records[item.place] = (item, sums, data)

    def make_a_move(self) -> None:
        if not self.moves:
            return
        move = self.moves.pop(self.choose.randrange(len(self.moves)))
        outcome = self.choose.choices(list(Outcome), self.outcomes)[0]
        ladder = self.core.ladder
        if isinstance(move, Promotion):
            self.promote(move, outcome)
        elif isinstance(move, Demotion):
            if outcome is Outcome.DONE:
                self.write(move.shelf, move.record.item, self.bytes_of(move))
            ladder.end_demotion(move, outcome, self.now)
        elif isinstance(move, Descent):
            if outcome is Outcome.DONE:
                data = self.disks[move.source.name].records[move.source_record.item.place][2]
                self.write(move.shelf, move.record.item, data)
            ladder.end_descent(move, outcome, self.now)
        else:
            self.erase(move, Outcome.DONE if outcome is Outcome.LOST else outcome)

    def promote(self, move: Promotion, outcome: Outcome) -> None:
        item, sums, data = self.disks[move.shelf.name].records[move.record.item.place]
        assert item == move.record.item
        place = move.obj.place
        junk = random.Random(self.now).randbytes(SIZE)
        self.segment[place : place + SIZE] = data if outcome is Outcome.DONE else junk
        self.core.ladder.end_promotion(move, outcome, sums, self.now)

    def erase(self, move: Erasure, outcome: Outcome) -> None:
        if outcome is Outcome.DONE:
            self.disks[move.shelf.name].records.pop(move.record.item.place, None)
        self.core.ladder.end_erasure(move, outcome)

    def weather(self) -> None:
        shelf = self.choose.choice(self.core.ladder.shelves)
        online = self.choose.random() < 0.7
        writable = online and self.choose.random() < 0.8
        shelf.set_condition(online=online, writable=writable, health="ok")

    def time_passes(self) -> None:
        self.now += self.choose.expovariate(1.0)
        self.core.tick(self.now)
        self.core.trim(self.now)

    def check(self) -> None:
        self.core.check()
        for shelf in self.core.ladder.shelves:
            stored, removed = shelf.changes.take()
            told = self.told[shelf.name]
            told |= set(stored)
            told -= set(removed)
            assert told == set(shelf.readable_keys())


@pytest.mark.parametrize("seed", range(4))
def test_no_tier_ever_serves_what_was_not_committed_last(seed: int) -> None:
    world = World(seed)
    steps: list[tuple[int, Callable[[], None]]] = [
        (8, world.put),
        (10, world.begin_read),
        (8, world.end_read),
        (1, world.remove),
        (20, world.make_a_move),
        (10, world.time_passes),
        (1, world.weather),
    ]
    weights, verbs = [w for w, _ in steps], [verb for _, verb in steps]
    seen: dict[str, int] = {}
    for step in range(STEPS):
        world.take_moves()
        world.choose.choices(verbs, weights)[0]()
        try:
            world.check()
            if step % 500 == 499:
                for name, count in world.core.stats().counters.items():
                    seen[name] = seen.get(name, 0) + count
                world.die()
                world.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, step {step}") from error
    for name in ("promotions_done", "promotions_lost", "demotions_done", "get_hits_oss"):
        assert seen[name] > 0, f"{name} never happened"
