"""One request as the mesh sees it: fixed once it is tokenized."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moonpool.kv import BlockKey, next_key, pack_keys
from moonpool.messages.ids import RequestId, TenantId
from moonpool.messages.sampling import SamplingParams
from services.gateway.core.promises import NO_PROMISES, Promises


@dataclass(frozen=True, slots=True)
class Job:
    request: RequestId
    tenant: TenantId
    model: str
    fingerprint: bytes
    root: bytes
    block_tokens: int
    prompt: NDArray[np.int32]  # [prompt tokens], at least one
    keys: tuple[BlockKey, ...]  # of all full blocks of the prompt
    sampling: SamplingParams
    promises: Promises = NO_PROMISES


class Text:
    """Prompt and the output so far, with the keys of all full blocks of both."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._keys = list(job.keys)  # grows when asked for
        self.output: list[int] = []  # len <= job.sampling.max_tokens

    @property
    def length(self) -> int:
        return len(self._job.prompt) + len(self.output)

    @property
    def left(self) -> int:
        """Tokens the answer may still have."""
        return self._job.sampling.max_tokens - len(self.output)

    def tokens(self) -> NDArray[np.int32]:
        """[prompt + output]"""
        return np.concatenate([self._job.prompt, np.array(self.output, dtype="<i4")])

    def packed_keys(self) -> bytes:
        step = self._job.block_tokens
        if self.length // step > len(self._keys):
            tokens = self.tokens()
            for at in range(len(self._keys), self.length // step):
                parent = self._keys[-1] if self._keys else self._job.root
                self._keys.append(next_key(parent, tokens[at * step : (at + 1) * step]))
        return pack_keys(self._keys)
