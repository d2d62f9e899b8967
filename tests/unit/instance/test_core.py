import random

import numpy as np
import pytest

from moonpool.cache import LruPolicy
from moonpool.engine.base import Sampled, StepResult
from moonpool.instance.core import InstanceCore, Limits, Work
from moonpool.instance.effects import BlockFilled, Effect, Emit, Ended, HandOver
from moonpool.instance.errors import QueueFull
from moonpool.instance.sequence import Phase, Sequence
from moonpool.kv import BlockPool, block_keys
from moonpool.messages import CapacityError, RequestId, TenantId
from moonpool.messages.load import request_tag
from moonpool.messages.sampling import SamplingParams

BLOCK = 16
EOS = 2


def make_core(blocks: int = 64, **limits: int) -> InstanceCore:
    values = {"chunk_tokens": 64, "sequences_max": 8, "queue_max": 4, "context_tokens": 1024}
    return InstanceCore(
        Limits(block_tokens=BLOCK, eos_token_ids=frozenset({EOS}), **{**values, **limits}),
        BlockPool(blocks, 1, LruPolicy()),
    )


def make_sequence(
    name: str, tokens: int, *, here: bool = False, max_tokens: int = 4, deadline_s: float = 1e9
) -> Sequence:
    ids = np.arange(10, 10 + tokens, dtype=np.int32)
    seq = Sequence(
        RequestId(name),
        0,
        TenantId("t"),
        root=b"r" * 16,
        keys=block_keys(b"r" * 16, ids, BLOCK),
        block_tokens=BLOCK,
        prompt_tokens=tokens,
        output_start=tokens,
        sampling=SamplingParams(max_tokens=max_tokens),
        deadline_s=deadline_s,
        decodes_here=here,
    )
    seq.set_tokens(ids, max_tokens)
    return seq


def admit_all(core: InstanceCore, now_s: float = 0.0) -> None:
    for seq in core.admit(now_s):
        core.ready(seq, seq.matched_blocks)


def step(core: InstanceCore, token: int = 7, now_s: float = 0.0) -> tuple[list[Work], list[Effect]]:
    """One step in which every sampling piece draws `token`."""
    admit_all(core, now_s)
    work, effects = core.next_batch(now_s)
    result = StepResult([Sampled(token) if w.samples else None for w in work])
    effects += core.complete(work, result, now_s)
    core.check()
    for effect in effects:
        if isinstance(effect, BlockFilled):
            core.give_back(effect.block, now_s)
    return work, effects


def emitted(effects: list[Effect]) -> list[tuple[str, int, int, str]]:
    return [
        (e.sequence.request, e.index, e.token, e.finish) for e in effects if isinstance(e, Emit)
    ]


def test_a_prompt_is_computed_in_chunks_of_whole_blocks_and_handed_over() -> None:
    core = make_core()
    seq = make_sequence("a", 150)
    core.submit(seq, 0.0)
    spans = []
    for _ in range(3):
        work, effects = step(core)
        spans += [(w.start, w.count, w.samples) for w in work]
    assert spans == [(0, 64, False), (64, 64, False), (128, 22, True)]
    assert emitted(effects) == [("a", 0, 7, "")]
    assert any(isinstance(e, HandOver) for e in effects)
    assert core.pool.blocks_free == 64 - 10
    core.end(seq, None, 1.0)
    assert core.pool.blocks_free == 64
    assert core.pool.match(seq.keys) != []


def test_short_prompts_share_a_step() -> None:
    core = make_core()
    for name in "abc":
        core.submit(make_sequence(name, 20), 0.0)
    work, effects = step(core)
    assert [w.count for w in work] == [20, 20, 20]
    assert len(emitted(effects)) == 3


def test_prompts_run_in_the_order_in_which_they_are_due_even_between_chunks() -> None:
    core = make_core(sequences_max=8)
    long, short, patient = (
        make_sequence(name, tokens)
        for name, tokens in (("long", 256), ("short", 64), ("patient", 64))
    )
    long.patience_s, short.patience_s, patient.patience_s = 8.0, 2.0, 20.0
    core.submit(long, 0.0)
    core.submit(patient, 0.0)
    assert [w.sequence for w in step(core, now_s=0.0)[0]] == [long]
    core.submit(short, 1.0)
    order = []
    while core.in_turn(0.0, Phase.PREFILL, Phase.QUEUED):
        work, _ = step(core, now_s=1.0)
        order += [w.sequence.request for w in work]
    assert list(dict.fromkeys(order)) == ["short", "long", "patient"]


def test_answers_that_end_are_told_with_their_length_and_prompts_handed_over_are_not() -> None:
    core = make_core()
    here, away = make_sequence("here", 32, here=True), make_sequence("away", 32)
    core.submit(here, 0.0)
    core.submit(away, 0.0)
    for _ in range(6):
        step(core)
    core.end(away, None, 0.0)
    reserved = make_sequence("reserved", 32)
    core.reserve(reserved, 0.0)
    core.end(reserved, None, 0.0)
    told = {sample.tag: sample.tokens for sample in core.ended}
    assert told == {request_tag("here"): 4, request_tag("reserved"): 0}


def test_whoever_came_before_is_overtaken_only_until_its_turn_is_due() -> None:
    core = make_core()
    long = make_sequence("long", 256)
    long.patience_s = 5.0
    core.submit(long, 0.0)
    late = make_sequence("late", 64)
    late.patience_s = 1.0
    core.submit(late, 4.5)
    assert [w.sequence for w in step(core, now_s=4.5)[0]] == [long]


def test_a_cached_prefix_is_reused_but_the_last_token_is_always_computed() -> None:
    core = make_core()
    first = make_sequence("a", 64)
    core.submit(first, 0.0)
    step(core)
    core.end(first, None, 0.0)
    again = make_sequence("b", 64)
    core.submit(again, 0.0)
    work, _ = step(core)
    assert again.matched_blocks == 3
    assert [(w.start, w.count) for w in work] == [(48, 16)]


def test_a_colocated_answer_runs_to_its_end_beside_new_prompts() -> None:
    core = make_core()
    core.submit(make_sequence("a", 20, here=True, max_tokens=3), 0.0)
    _, effects = step(core)
    assert emitted(effects) == [("a", 0, 7, "")]
    core.submit(make_sequence("b", 200, here=True), 0.0)
    work, effects = step(core)
    assert [(w.sequence.request, w.count) for w in work] == [("a", 1), ("b", 48)]
    assert emitted(effects) == [("a", 1, 7, "")]
    _, effects = step(core)
    assert emitted(effects) == [("a", 2, 7, "length")]
    assert core.find(RequestId("a"), 0) is None


def test_the_end_token_ends_the_answer_and_is_part_of_it() -> None:
    core = make_core()
    core.submit(make_sequence("a", 20, here=True), 0.0)
    _, effects = step(core, token=EOS)
    assert emitted(effects) == [("a", 0, EOS, "stop")]
    assert core.sequences() == []


def test_the_block_an_answer_ends_in_is_filled_when_its_last_token_completes_it() -> None:
    core = make_core()
    core.submit(make_sequence("a", 29, here=True, max_tokens=3), 0.0)
    step(core)
    step(core)
    _, effects = step(core)
    assert emitted(effects) == [("a", 2, 7, "length")]
    work, effects = step(core)
    assert [(w.start, w.samples) for w in work] == [(31, False)]
    assert [type(e) for e in effects] == [BlockFilled]
    assert core.sequences() == []
    tokens = [*range(10, 39), 7, 7, 7]
    assert len(core.pool.match(block_keys(b"r" * 16, tokens, BLOCK))) == 2


def test_a_reservation_joins_and_streams() -> None:
    core = make_core()
    seq = make_sequence("a", 40, max_tokens=3)
    assert core.reserve(seq, 0.0) == 0
    assert core.next_batch(0.0) == ([], [])
    core.join(seq, first_token=9)
    _, effects = step(core)
    assert emitted(effects) == [("a", 1, 7, "")]
    _, effects = step(core)
    assert emitted(effects) == [("a", 2, 7, "length")]
    assert core.pool.blocks_free == 64


def test_blocks_of_an_ended_reservation_wait_until_its_writer_has_stopped() -> None:
    core = make_core(blocks=4)
    seq = make_sequence("a", 40)
    core.reserve(seq, 0.0)
    core.end(seq, None, 1.0)
    assert core.decoding() == 0
    assert core.pool.blocks_free == 1
    core.writer_stopped(seq, 1.0)
    core.writer_stopped(seq, 1.0)
    assert core.pool.blocks_free == 4
    core.check()


def test_blocks_of_a_silent_writer_come_back_after_the_quarantine() -> None:
    core = make_core(blocks=4)
    core.reserve(make_sequence("a", 40, deadline_s=5.0), 0.0)
    effects = core.expire(5.0)
    assert [type(e) for e in effects] == [Ended]
    core.expire(5.0 + core.limits.quarantine_s - 1)
    assert core.pool.blocks_free == 1
    core.expire(5.0 + core.limits.quarantine_s)
    assert core.pool.blocks_free == 4
    assert core.sequences() == []


def test_reserve_refuses_when_slots_or_blocks_are_out() -> None:
    core = make_core(blocks=4, sequences_max=2)
    core.reserve(make_sequence("a", 30), 0.0)
    with pytest.raises(CapacityError, match="blocks"):
        core.reserve(make_sequence("b", 60), 0.0)
    core.reserve(make_sequence("c", 10), 0.0)
    with pytest.raises(CapacityError, match="slot"):
        core.reserve(make_sequence("d", 10), 0.0)
    core.check()


def test_a_prompt_that_can_never_fit_is_refused_at_once() -> None:
    core = make_core(blocks=2)
    with pytest.raises(CapacityError, match="MOONPOOL_KV_POOL_BYTES"):
        core.submit(make_sequence("a", 33), 0.0)


def test_the_queue_is_bounded() -> None:
    core = make_core(queue_max=2)
    core.submit(make_sequence("a", 10), 0.0)
    core.submit(make_sequence("b", 10), 0.0)
    with pytest.raises(QueueFull):
        core.submit(make_sequence("c", 10), 0.0)


def test_the_youngest_answer_makes_room_when_blocks_run_out() -> None:
    core = make_core(blocks=2)
    core.submit(make_sequence("old", 16, here=True, max_tokens=9), 0.0)
    core.submit(make_sequence("young", 16, here=True, max_tokens=9), 0.0)
    step(core)
    _, effects = step(core)
    (ended,) = [e for e in effects if isinstance(e, Ended)]
    assert ended.sequence.request == "young"
    assert ended.error.elsewhere
    assert emitted(effects) == [("old", 1, 7, "")]


def test_cancelling_in_mid_step_frees_blocks_when_the_step_is_over_and_emits_nothing() -> None:
    core = make_core(blocks=4)
    seq = make_sequence("a", 20)
    core.submit(seq, 0.0)
    admit_all(core)
    work, _ = core.next_batch(0.0)
    core.end(seq, None, 0.0)
    assert core.pool.blocks_free == 2
    assert core.complete(work, StepResult([Sampled(7)]), 0.0) == []
    assert core.pool.blocks_free == 4


def test_a_failed_fetch_is_computed_instead() -> None:
    core = make_core()
    seq = make_sequence("a", 60)
    core.submit(seq, 0.0)
    (admitted,) = core.admit(0.0)
    core.ready(admitted, 3)
    work, _ = core.next_batch(0.0)
    assert [(w.start, w.count) for w in work] == [(48, 12)]
    core.abort(work, 0.0)
    core.fetch_failed(seq)
    work, effects = step(core)
    assert [(w.start, w.count) for w in work] == [(0, 60)]
    assert emitted(effects) == [("a", 0, 7, "")]


def test_fetched_blocks_are_findable_only_once_they_have_arrived() -> None:
    core = make_core()
    seq = make_sequence("a", 60)
    core.submit(seq, 0.0)
    core.admit(0.0)
    core.ready(seq, 3)
    assert core.pool.match(seq.keys) == []
    core.fetched(seq)
    assert len(core.pool.match(seq.keys)) == 3


def test_a_prompt_still_loading_does_not_stall_running_answers() -> None:
    core = make_core()
    core.submit(make_sequence("a", 20, here=True), 0.0)
    step(core)
    loading = make_sequence("b", 60, here=True)
    core.submit(loading, 0.0)
    core.admit(0.0)
    core.ready(loading, 2 if loading.matched_blocks < 2 else 3)
    work, _ = core.next_batch(0.0)
    assert [w.sequence.request for w in work] == ["a"]


@pytest.mark.parametrize("seed", range(8))
def test_any_mix_of_events_leaves_nothing_behind(seed: int) -> None:
    rng = random.Random(seed)
    core = make_core(blocks=24, sequences_max=4)
    for n in range(300):
        now = float(n)
        seq = make_sequence(f"r{n}", rng.randrange(1, 120), here=True, deadline_s=now + 40)
        try:
            if rng.random() < 0.4:
                core.reserve(seq, now)
                if rng.random() < 0.6:
                    core.join(seq, 5)
            elif rng.random() < 0.5:
                core.submit(seq, now)
        except CapacityError:
            assert seq.blocks == []
        if rng.random() < 0.2 and core.sequences():
            victim = rng.choice(core.sequences())
            core.end(victim, None, now)
            if rng.random() < 0.5:
                core.writer_stopped(victim, now)
        core.expire(now)
        step(core, token=rng.choice([7, 7, EOS]), now_s=now)
    core.expire(1e6)
    core.expire(2e6)
    assert core.sequences() == []
    assert core.pool.blocks_free == 24


def test_a_high_prompt_overtakes_one_that_is_under_way_between_chunks() -> None:
    core = make_core()
    core.submit(make_sequence("long", 200), 0.0)
    step(core)
    high = make_sequence("high", 30)
    high.level = 0
    core.submit(high, 1.0)
    work, _ = step(core, now_s=1.0)
    assert work[0].sequence.request == "high"


def test_a_prompt_that_could_not_begin_in_time_is_refused_and_a_begun_one_is_not() -> None:
    core = make_core(blocks=14)
    begun, waiting = make_sequence("begun", 200), make_sequence("waiting", 32)
    for seq in (begun, waiting):
        seq.start_by_s = 5.0
        core.submit(seq, 0.0)
    step(core)
    (ended,) = core.expire(5.0)
    assert isinstance(ended, Ended)
    assert (ended.sequence.request, ended.error.code) == ("waiting", "ttft")
    assert not ended.error.elsewhere
    assert core.find(begun.request, 0) is begun
    assert core.find(waiting.request, 0) is None
    core.check()
