"""The prompts of the index benchmarks: the same for us and for the rival, from one seed.

Imported by the rival's interpreter too: the standard library only.
"""

import random

KEY_BYTES = 16
SHORT, LONG = 64, 2000  # blocks per prompt
EVENT_BLOCKS = 16  # blocks that one event stores
OWNERS = 8
MISSES = 200


def make_chains(blocks: int) -> dict[int, list[bytes]]:
    """Packed keys of about `blocks` blocks: half in short prompts, half in long ones."""
    rng = random.Random(1)
    half = blocks // 2
    return {
        length: [rng.randbytes(KEY_BYTES * length) for _ in range(half // length)]
        for length in (SHORT, LONG)
    }


def choose(chains: list[bytes], calls: int, turn: int) -> list[int]:
    """Which prompts are asked for in round `turn`: indexes into `chains`."""
    rng = random.Random(f"{len(chains)}:{turn}")
    return [rng.randrange(len(chains)) for _ in range(calls)]


def misses(blocks: int, turn: int) -> list[bytes]:
    """Prompts of `blocks` blocks that nobody holds."""
    rng = random.Random(f"miss:{blocks}:{turn}")
    return [rng.randbytes(KEY_BYTES * blocks) for _ in range(MISSES)]


def events(chains: dict[int, list[bytes]]) -> list[tuple[int, bytes, bytes]]:
    """(owner, key before, keys) of every store event, prompts in order; no key: the first."""
    size = EVENT_BLOCKS * KEY_BYTES
    made: list[tuple[int, bytes, bytes]] = []
    for number, packed in enumerate((*chains[SHORT], *chains[LONG])):
        owner = number % OWNERS
        for at in range(0, len(packed), size):
            made.append((owner, packed[at - KEY_BYTES : at] if at else b"", packed[at : at + size]))
    return made
