"""Load reports as the modelled instances send them: what a real one says, from a model's state."""

from moonpool.messages.load import (
    PROMPTS_MAX,
    AnswerSample,
    LoadReport,
    QueuedPrompt,
    StepSample,
    TransferSample,
    request_tag,
)
from services.conductor.simulate.serve.decode import DecodeModel
from services.conductor.simulate.serve.machine import Machine
from services.conductor.simulate.serve.prefill import Job, PrefillModel

EPOCH = "e"  # of everybody: nobody restarts


def prefill_report(
    id: str, seq: int, prefill: PrefillModel, transfers: list[TransferSample], machine: Machine
) -> LoadReport:
    """Takes the samples that were gathered since the last one."""
    prompts = [_queued(prefill, job, machine) for job in prefill.jobs()]
    compute, prefill.samples = prefill.samples, []
    blocks = prefill.cache.blocks_max
    return LoadReport(
        id,
        EPOCH,
        seq,
        queued_requests=len(prompts),
        queued_tokens=sum(prompt.new_tokens for prompt in prompts),
        blocks_free=blocks,
        blocks_total=max(blocks, _ROOM),
        compute=compute,
        transfers=transfers,
        prompts=prompts[:PROMPTS_MAX],
    )


def decode_report(
    id: str,
    seq: int,
    decode: DecodeModel,
    transfers: list[TransferSample],
    answers: list[AnswerSample],
    noise: float,
) -> LoadReport:
    """`noise`: how much longer than the model says the step took that it tells of."""
    batch, context = decode.batch, int(decode.context_tokens())
    return LoadReport(
        id,
        EPOCH,
        seq,
        running=batch,
        reserved=len(decode.reserved),
        slots_total=decode.slots,
        context_tokens=context,
        blocks_free=decode.blocks_free,
        blocks_total=decode.blocks_total,
        transfers=transfers,
        steps=[StepSample(batch, context, decode.step_s() * noise)] if batch else [],
        answers=answers,
    )


_ROOM = 4096  # blocks: a prompt has room to be computed in, even where nothing is kept


def _queued(prefill: PrefillModel, job: Job, machine: Machine) -> QueuedPrompt:
    """What is left of a prompt, and when its turn is due."""
    tokens = job.ask.prompt_tokens
    if job.reused_blocks >= 0:
        cached = prefill.progress(job)
    else:
        reused = job.plan.runs[-1].end if job.plan.runs else 0
        cached = min(reused * machine.block_tokens, tokens - 1)
    tag = request_tag(str(job.ask.number))
    return QueuedPrompt(tokens - cached, cached, job.due_s - prefill.now_s, tag)
