"""Token events to the gateway: the answer as it grows, and how it ends."""

from moonpool.instance.effects import Emit, Ended
from moonpool.instance.links import Links
from moonpool.instance.sequence import Sequence
from moonpool.messages import InstanceId, MoonpoolError
from moonpool.messages.codec import encode
from moonpool.messages.tokens import Timings, TokenEvent


class Answers:
    def __init__(self, links: Links) -> None:
        self._links = links
        self._source = InstanceId(links.ctx.id)
        self.events = 0
        self.lost = 0

    async def token(
        self, emit: Emit, cached: dict[str, int] | None = None, timings: Timings | None = None
    ) -> None:
        seq = emit.sequence
        await self._publish(
            TokenEvent(
                request=seq.request,
                attempt=seq.attempt,
                index=emit.index,
                source=self._source,
                tokens=(emit.token,),
                finish=emit.finish,
                logprobs=(emit.logprobs,) if emit.logprobs is not None else (),
                cached_tokens=cached,
                timings=timings,
            )
        )

    async def ended(self, ended: Ended) -> None:
        await self.failed(ended.sequence, ended.error)

    async def failed(self, seq: Sequence, error: MoonpoolError) -> None:
        await self._publish(
            TokenEvent(
                request=seq.request,
                attempt=seq.attempt,
                index=seq.next_index,
                source=self._source,
                finish="cancelled" if error.code == "cancelled" else "error",
                error=error.info(),
            )
        )

    async def _publish(self, event: TokenEvent) -> None:
        ctx = self._links.ctx
        try:
            await ctx.bus.publish(ctx.subjects.tokens(event.request), encode(event))
            self.events += 1
        except MoonpoolError as error:
            # The gateway notices the gap in the indexes and continues elsewhere.
            self.lost += 1
            ctx.log.error("token event lost request=%s error=%s", event.request, error)
