"""Tiny random models in the Hugging Face form, saved to a folder: real code, no download."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.gemma.configuration_gemma import GemmaConfig
from transformers.models.gemma2.configuration_gemma2 import Gemma2Config
from transformers.models.gemma3.configuration_gemma3 import Gemma3TextConfig
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.mistral.configuration_mistral import MistralConfig
from transformers.models.mixtral.configuration_mixtral import MixtralConfig
from transformers.models.qwen2.configuration_qwen2 import Qwen2Config
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

SMALL: dict[str, Any] = {
    "vocab_size": 257,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": 256,
    "bos_token_id": 0,
    "pad_token_id": 0,
}

TINY: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SMALL, dtype="float32"),
    "qwen2": Qwen2Config(**SMALL, dtype="float32"),
    "qwen3": Qwen3Config(**SMALL, head_dim=32, dtype="float32"),
    "mistral_window": MistralConfig(**SMALL, sliding_window=20, dtype="float32"),
    "gemma": GemmaConfig(**SMALL, head_dim=32, dtype="float32"),
    "gemma3_mixed": Gemma3TextConfig(
        **{**SMALL, "num_hidden_layers": 3},
        head_dim=32,
        sliding_window=24,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        dtype="float32",
    ),
    "mixtral": MixtralConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2, dtype="float32"),
}
SOFTCAPPED = Gemma2Config(**SMALL, head_dim=32, attn_logit_softcapping=30.0, dtype="float32")


def save_tiny(config: PreTrainedConfig, folder: Path, *, seed: int = 0) -> Path:
    """A random model of `config` under `folder`, spread enough that its choices are clear."""
    torch.manual_seed(seed)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2:
                weight.normal_(0, 0.08 if "embed" not in name else 1.0)
    model.save_pretrained(folder)
    return folder
