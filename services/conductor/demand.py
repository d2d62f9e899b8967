"""Demand: what one request needs, in blocks, tokens and promises."""

from dataclasses import dataclass

from moonpool.messages.plan import PlanRequest
from moonpool.messages.prefill import AGE_S, LEVELS
from moonpool.messages.registry import ModelRecord

NORMAL = LEVELS.index("normal")


@dataclass(frozen=True, slots=True)
class Demand:
    """A plan request next to the model record it is about."""

    prompt_tokens: int  # >= 1
    block_tokens: int
    block_bytes: int
    slo_ttft_s: float  # > 0
    slo_tbt_s: float  # > 0
    class_delay_s: float = 0.0  # how much later than a normal one it is due; high: below 0
    tenant: str = ""

    @classmethod
    def of(
        cls, request: PlanRequest, model: ModelRecord, slo_ttft_s: float, slo_tbt_s: float
    ) -> "Demand":
        """Promises that the request leaves at 0 are the mesh's own."""
        return cls(
            prompt_tokens=max(1, request.prompt_tokens),
            block_tokens=model.block_tokens,
            block_bytes=model.block_bytes,
            slo_ttft_s=request.slo_ttft_s or slo_ttft_s,
            slo_tbt_s=request.slo_tbt_s or slo_tbt_s,
            class_delay_s=(request.level - NORMAL) * AGE_S,
            tenant=request.tenant,
        )

    @property
    def blocks(self) -> int:
        """Blocks of the whole prompt and the first new token, a partial tail included."""
        return self.prompt_tokens // self.block_tokens + 1

    def split(self, cached_blocks: int) -> tuple[int, int]:
        """(new, cached) tokens when the leading blocks need no compute. The last token is always
        computed: the first answer token comes from it."""
        cached = min(cached_blocks * self.block_tokens, self.prompt_tokens - 1)
        return self.prompt_tokens - cached, cached
