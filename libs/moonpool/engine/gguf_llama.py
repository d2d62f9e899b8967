"""A llama-type GGUF file turned into a folder of safetensors that transformers loads by itself.

transformers can read GGUF only together with `accelerate`, slowly, and refuses to save what it
read. The conversion here is exact: every value is dequantised to float32 and saved as such.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

from moonpool.engine.errors import ModelDamaged, UnsupportedModel

_CONTROL_TOKEN = 3  # of `tokenizer.ggml.token_type`

_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert_llama(source: Path, target: Path, *, dtype: str) -> None:
    """Writes weights (float32), configuration, tokenizer, chat template and generation settings.

    `dtype` is what the configuration names as the model's own. Raises UnsupportedModel when the
    file is of another architecture, ModelDamaged when tensors are missing.
    """
    reader = gguf.GGUFReader(source)
    meta = {name: field.contents() for name, field in reader.fields.items()}
    if meta["general.architecture"] != "llama":
        raise UnsupportedModel(f"{source.name} is {meta['general.architecture']!r}, not llama")
    config = _config(meta, tied=all(t.name != "output.weight" for t in reader.tensors))
    config.architectures = ["LlamaForCausalLM"]
    config.dtype = dtype
    weights = dict(_tensors(reader, config))
    expected = 9 * config.num_hidden_layers + (2 if config.tie_word_embeddings else 3)
    if len(weights) != expected:
        raise ModelDamaged(f"{source.name} holds {len(weights)} of {expected} tensors")
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(target)
    tokenizer = _tokenizer(meta)
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(target)
    GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    ).save_pretrained(target)


def _config(meta: dict[str, Any], *, tied: bool) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(meta["tokenizer.ggml.tokens"]),
        hidden_size=meta["llama.embedding_length"],
        intermediate_size=meta["llama.feed_forward_length"],
        num_hidden_layers=meta["llama.block_count"],
        num_attention_heads=meta["llama.attention.head_count"],
        num_key_value_heads=meta["llama.attention.head_count_kv"],
        max_position_embeddings=meta["llama.context_length"],
        # stored as float32: 9.999999747e-06 is 1e-05
        rms_norm_eps=float(f"{meta['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        rope_parameters={"rope_type": "default", "rope_theta": meta["llama.rope.freq_base"]},
        tie_word_embeddings=tied,
        bos_token_id=meta["tokenizer.ggml.bos_token_id"],
        eos_token_id=meta["tokenizer.ggml.eos_token_id"],
        pad_token_id=meta["tokenizer.ggml.padding_token_id"],
    )


def _tensors(reader: gguf.GGUFReader, config: LlamaConfig) -> Iterator[tuple[str, torch.Tensor]]:
    assert config.num_key_value_heads is not None
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        inner = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", tensor.name)
        if inner:
            layer, part = inner.groups()
            name = f"model.layers.{layer}.{_INNER[part]}.weight"
            if part in heads:
                values = _half_split_rotary(values, heads[part])
        else:
            name = _OUTER[tensor.name]
        yield name, torch.from_numpy(np.array(values))  # a copy: views of the file are read-only


def _half_split_rotary(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """GGUF keeps the two halves of each rotary pair side by side; transformers keeps all first
    halves before all second halves. [heads * head_dim, hidden] both ways."""
    split = rows.reshape(heads, rows.shape[0] // heads // 2, 2, rows.shape[1])
    return split.swapaxes(1, 2).reshape(rows.shape)


def _tokenizer(meta: dict[str, Any]) -> PreTrainedTokenizerFast:
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ", 1)) for pair in meta["tokenizer.ggml.merges"]]
    backend = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if meta["tokenizer.ggml.pre"] == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    else:
        backend.pre_tokenizer = byte_level
    backend.decoder = decoders.ByteLevel()
    kinds = meta["tokenizer.ggml.token_type"]
    backend.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == _CONTROL_TOKEN
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=tokens[meta["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[meta["tokenizer.ggml.eos_token_id"]],
        unk_token=tokens[meta["tokenizer.ggml.unknown_token_id"]],
        pad_token=tokens[meta["tokenizer.ggml.padding_token_id"]],
        chat_template=meta["tokenizer.chat_template"],
        clean_up_tokenization_spaces=False,
    )
