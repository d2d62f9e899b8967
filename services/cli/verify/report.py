"""The outcome of a verification, for people and for scripts."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from services.cli.verify.compare import Verdict


@dataclass(frozen=True, slots=True)
class Report:
    model: str
    dtype: str
    verdicts: Sequence[Verdict]

    @property
    def equal(self) -> bool:
        return all(v.ok for v in self.verdicts)

    @property
    def logprob_difference_max(self) -> float:
        return max((v.logprob_difference_max for v in self.verdicts), default=0.0)

    def as_json(self) -> str:
        return json.dumps(
            {
                "model": self.model,
                "dtype": self.dtype,
                "equal": self.equal,
                "near_ties": sum(v.near_tie for v in self.verdicts),
                "logprob_difference_max": self.logprob_difference_max,
                "prompts": [asdict(v) | {"ok": v.ok} for v in self.verdicts],
            }
        )


def line(verdict: Verdict) -> str:
    """One prompt of one run."""
    head = f"{verdict.prompt[:24]:24} {verdict.run:9} {verdict.compared:4} tokens"
    tail = (
        f"cached {verdict.cached_tokens:5}  log-prob. off by {verdict.logprob_difference_max:.2g}"
    )
    if verdict.equal:
        return f"{head}  equal      {tail}"
    ours, theirs = verdict.texts[1], verdict.texts[0]
    kind = "near tie" if verdict.near_tie else "DIFFERENT"
    return (
        f"{head}  {kind:9}  {tail}\n"
        f"    at token {verdict.first_difference}: transformers {theirs!r}, mesh {ours!r}; "
        f"logits {verdict.gap:.4g} apart, {verdict.resolvable:.4g} can't be told apart"
    )


def render(report: Report) -> str:
    """The whole report, as text."""
    lines = [line(v) for v in report.verdicts]
    ties = sum(v.near_tie for v in report.verdicts)
    same = sum(v.equal for v in report.verdicts)
    verdict = "equal" if report.equal else "NOT EQUAL"
    lines.append(
        f"\n{report.model}, {report.dtype}: {verdict}: {same} of {len(report.verdicts)} outputs "
        f"token for token, {ties} differ at a proven near tie; largest difference of a "
        f"log-probability {report.logprob_difference_max:.3g}"
    )
    return "\n".join(lines)
