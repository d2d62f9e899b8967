"""A small byte-level tokenizer with a chat template, trained on the spot: real, and quick."""

from functools import cache
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from services.gateway.text_model import TextModel

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'system' and not loop.first %}"
    "{{ raise_exception('a system message comes first') }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CORPUS = [
    "the quick brown fox jumps over the lazy dog and then it sleeps",
    "user assistant system hello world how are you today",
    "写一首关于月亮的诗 月亮很圆",
    "def add(a, b):\n    return a + b\n",
    "stop END finished emoji 🙂🚀",
]


@cache
def tiny_tokenizer(chat: bool = True) -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    make: Any = PreTrainedTokenizerFast
    wrapped = make(tokenizer_object=tokenizer, eos_token=SPECIAL[2])
    if chat:
        wrapped.chat_template = TEMPLATE
    return wrapped


@cache
def tiny_text(chat: bool = True) -> TextModel:
    return TextModel(tiny_tokenizer(chat))
