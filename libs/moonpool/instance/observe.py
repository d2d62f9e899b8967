"""What really happened, for the conductor's predictors: bounded, emptied by each load report."""

from collections import deque

from moonpool.messages.load import ComputeSample, StepSample, TransferSample

SAMPLES_MAX = 64


class Observations:
    def __init__(self) -> None:
        self._compute: deque[ComputeSample] = deque(maxlen=SAMPLES_MAX)
        self._transfers: deque[TransferSample] = deque(maxlen=SAMPLES_MAX)
        self._steps: deque[StepSample] = deque(maxlen=SAMPLES_MAX)

    def computed(self, new_tokens: int, cached_tokens: int, seconds: float) -> None:
        self._compute.append(ComputeSample(new_tokens, cached_tokens, seconds))

    def transferred(
        self, source: str, target: str, tier: str, size_bytes: int, seconds: float
    ) -> None:
        self._transfers.append(TransferSample(source, target, tier, size_bytes, seconds))

    def stepped(self, sequences: int, context_tokens: int, seconds: float) -> None:
        self._steps.append(StepSample(sequences, context_tokens, seconds))

    def take(self) -> tuple[list[ComputeSample], list[TransferSample], list[StepSample]]:
        taken = (list(self._compute), list(self._transfers), list(self._steps))
        self._compute.clear()
        self._transfers.clear()
        self._steps.clear()
        return taken
