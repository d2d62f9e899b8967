"""Is a mesh's output what transformers computes? Asks both the same and compares.

`compare` is pure; `asking` talks to a gateway, `reference` runs the model in this process.
"""

from services.cli.verify.compare import Output, Position, Verdict, compare
from services.cli.verify.prompts import BUILTIN, Prompt, read_prompts
from services.cli.verify.report import Report, render

__all__ = [
    "BUILTIN",
    "Output",
    "Position",
    "Prompt",
    "Report",
    "Verdict",
    "compare",
    "read_prompts",
    "render",
]
