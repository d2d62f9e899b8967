"""Loading transformers' own model of a folder, and refusing early what could never work."""

import hashlib
import inspect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import logging as transformers_logging

from moonpool.engine.errors import ModelDamaged, ModelNotFound, UnsupportedModel
from moonpool.engine.paged_step import ATTENTION

_LAYER_TYPES = {"full_attention", "sliding_attention"}
# Says nothing about what the model computes.
_VOLATILE = {"transformers_version", "torch_dtype", "dtype", "_name_or_path", "architectures"}
_WINDOW_KEYS = ("sliding_window", "layer_types")
_FAST_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # the last is ARM's


@dataclass(slots=True)
class LoadedModel:
    model: PreTrainedModel
    config: PreTrainedConfig
    dtype: torch.dtype
    device: torch.device
    context_tokens: int
    eos_token_ids: tuple[int, ...]
    rope: str  # canonical JSON: rope settings and a digest of the configuration
    cache_argument: str  # how the model's call names its cache
    can_pick_rows: bool  # whether it takes `logits_to_keep`


def load_hf_model(path: Path, *, dtype: str, device: str) -> LoadedModel:
    """The model in evaluation mode on its device, its attention replaced by ours.

    Raises ModelNotFound, ModelDamaged or UnsupportedModel.
    """
    config = read_config(path)
    check_config(config)
    target = pick_device(device)
    kind = pick_dtype(dtype, config, target)
    transformers_logging.disable_progress_bar()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=kind,
            attn_implementation=ATTENTION,
            local_files_only=True,
            output_loading_info=True,
        )
    except SafetensorError as error:
        raise ModelDamaged(f"the weights in {path} cannot be read: {error}") from error
    except (ValueError, ImportError, OSError) as error:
        raise UnsupportedModel(f"transformers cannot load {path}: {error}") from error
    finally:
        transformers_logging.enable_progress_bar()
    model, report = loaded  # because of `output_loading_info`
    if report["missing_keys"]:
        some = ", ".join(sorted(report["missing_keys"])[:3])
        raise ModelDamaged(f"{path} lacks {len(report['missing_keys'])} weights, such as {some}")
    model = model.to(target).eval().requires_grad_(False)
    parameters = inspect.signature(model.forward).parameters
    return LoadedModel(
        model=model,
        config=config,
        dtype=kind,
        device=target,
        context_tokens=_context_tokens(config),
        eos_token_ids=_eos_token_ids(model),
        rope=_rope(path, config),
        cache_argument="cache" if "cache" in parameters else "past_key_values",
        can_pick_rows="logits_to_keep" in parameters,
    )


def read_config(path: Path) -> PreTrainedConfig:
    """The configuration in `path`. Raises ModelNotFound or UnsupportedModel."""
    if not (path / "config.json").is_file():
        raise ModelNotFound(
            f"{path} has no config.json: it is not a model in the Hugging Face form"
        )
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(path, local_files_only=True)
    except (ValueError, OSError, KeyError) as error:
        raise UnsupportedModel(
            f"transformers does not know the model in {path}: {error}"
        ) from error
    return config


def check_config(config: PreTrainedConfig) -> None:
    """Raises UnsupportedModel for what the configuration alone rules out."""
    name = config.model_type
    if config.is_encoder_decoder:
        raise UnsupportedModel(f"{name} is an encoder-decoder: only causal LMs can be served")
    if config.get_text_config() is not config:
        raise UnsupportedModel(f"{name} is multi-modal: only text models can be served")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnsupportedModel(f"{name} is no causal LM: it cannot write text")
    strange = set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES
    if strange:
        raise UnsupportedModel(
            f"{name} has layers of type {', '.join(sorted(strange))}: their state is no KV cache "
            "that could be kept in blocks"
        )
    if getattr(config, "attention_chunk_size", None):
        raise UnsupportedModel(f"{name} attends in chunks, which this engine does not do")
    kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if not getattr(kind, "_supports_attention_backend", False):
        raise UnsupportedModel(
            f"{name} does not let its attention be replaced (no attention interface in "
            "transformers), or keeps state that is no KV cache"
        )


def pick_device(wanted: str) -> torch.device:
    """ "auto" is cuda when present. UnsupportedModel when a named device is not there."""
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise UnsupportedModel(f"device {wanted!r} is none of cpu, cuda, cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UnsupportedModel(f"device {wanted!r}: PyTorch sees no CUDA device here; use cpu")
    return device


def pick_dtype(wanted: str, config: PreTrainedConfig, device: torch.device) -> torch.dtype:
    """ "auto" is the configuration's own type, where the device computes fast in it."""
    if wanted != "auto":
        return {
            "float32": torch.float32,
            "bfloat16": torch.bfloat16,
            "float16": torch.float16,
        }[wanted]
    own = config.dtype or torch.float32
    if device.type == "cpu" and (own is torch.float16 or not has_fast_bf16()):
        return torch.float32
    return own if own in (torch.float32, torch.bfloat16, torch.float16) else torch.float32


def has_fast_bf16() -> bool:
    """Whether this CPU multiplies bfloat16 natively; without, float32 is faster."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    line = next((x for x in text.splitlines() if x.startswith(("flags", "Features"))), "")
    return bool(_FAST_BF16_FLAGS & set(line.split()))


def _context_tokens(config: PreTrainedConfig) -> int:
    tokens = getattr(config, "max_position_embeddings", None)
    if not isinstance(tokens, int) or tokens < 1:
        raise UnsupportedModel(f"{config.model_type} does not say how long its context is")
    return tokens


def _eos_token_ids(model: PreTrainedModel) -> tuple[int, ...]:
    generation = getattr(model, "generation_config", None)
    ids = getattr(generation, "eos_token_id", None)
    if ids is None:
        ids = model.config.eos_token_id
    if ids is None:
        return ()
    return (ids,) if isinstance(ids, int) else tuple(ids)


def _rope(path: Path, config: PreTrainedConfig) -> str:
    """The file's own text is hashed, not transformers' view of it, which changes by release."""
    raw: dict[str, Any] = json.loads((path / "config.json").read_text())
    kept = {k: v for k, v in raw.items() if k not in _VOLATILE}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"))
    rope = getattr(config, "rope_parameters", None) or {}
    settings = {"rope": rope, "config_sha256": hashlib.sha256(text.encode()).hexdigest()}
    return json.dumps(settings, sort_keys=True, separators=(",", ":"), default=str)
