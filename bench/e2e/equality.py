"""Whether the mesh says what transformers' generate says, token for token (float32)."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.e2e.asking import Asker

TOKENS = 16
TEXTS = (
    "Hello",
    "The capital of France is",
    "月亮为什么会发光？",
    "def gcd(a, b):\n    while b:\n",
    "1, 4, 9, 16, 25,",
    "Once upon a time " * 40,
    "The quick brown fox jumps over the lazy dog. " * 60,
)


async def equal_tokens(asker: Asker, path: Path) -> bool:
    """True when every prompt gives the same text, cold and again from cache, and in one batch."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    equal = True
    for text in TEXTS:
        ids = tokenizer(text, add_special_tokens=False).input_ids
        batch = torch.tensor([ids])
        with torch.inference_mode():
            out = model.generate(
                batch,
                attention_mask=torch.ones_like(batch),
                max_new_tokens=TOKENS,
                do_sample=False,
                pad_token_id=tokenizer.eos_token_id,
            )
        want = tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True)
        for _ in range(2):
            equal = equal and (await asker.complete(ids, TOKENS)).text == want
    return equal
