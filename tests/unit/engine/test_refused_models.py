"""What this engine cannot serve is refused at load, by name, with a reason."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedConfig
from transformers.models.bert.configuration_bert import BertConfig
from transformers.models.bloom.configuration_bloom import BloomConfig
from transformers.models.falcon_h1.configuration_falcon_h1 import FalconH1Config
from transformers.models.gemma3.configuration_gemma3 import Gemma3Config
from transformers.models.mamba.configuration_mamba import MambaConfig
from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig
from transformers.models.t5.configuration_t5 import T5Config

from moonpool.engine import ModelDamaged, ModelNotFound, UnsupportedModel
from moonpool.engine.hf_model import has_fast_bf16, pick_device, pick_dtype
from moonpool.engine.torch_engine import load_engine
from tests.support.tiny_models import SMALL, SOFTCAPPED, TINY, save_tiny

Folder = Callable[[str], Path]


def load(path: Path, **given: object) -> object:
    return load_engine(path, name="x", **{"device": "cpu", "block_tokens": 16, **given})


def with_config(folder: Path, config: PreTrainedConfig) -> Path:
    """A folder whose weights do not matter: its configuration is refused before they are read."""
    config.save_pretrained(folder)
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (T5Config(d_model=64, num_layers=1, num_heads=2), "encoder-decoder"),
        (Gemma3Config(), "multi-modal"),
        (MambaConfig(hidden_size=64, num_hidden_layers=1), "linear_attention"),
        (FalconH1Config(hidden_size=64, num_hidden_layers=1), "state|linear"),
        (Qwen3NextConfig(num_hidden_layers=4), "linear_attention"),
        (BloomConfig(hidden_size=64, n_layer=1, n_head=2), "no attention interface"),
    ],
    ids=lambda value: value.model_type if isinstance(value, PreTrainedConfig) else "",
)
def test_a_model_of_another_kind_is_refused_by_its_configuration(
    config: PreTrainedConfig, says: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=says) as refusal:
        load(with_config(tmp_path, config))
    assert config.model_type in refusal.value.message


def test_attention_with_another_formula_is_refused_by_what_it_asks_for(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"gemma2 .*'softcap'"):
        load(save_tiny(SOFTCAPPED, tmp_path))


def test_attention_that_looks_ahead_is_refused(tmp_path: Path) -> None:
    config = BertConfig(**{**SMALL, "num_key_value_heads": 4}, dtype="float32")
    with pytest.raises(UnsupportedModel, match=r"bert .*ahead"):
        load(save_tiny(config, tmp_path))


def test_chunked_attention_is_refused(tmp_path: Path) -> None:
    config = TINY["llama"].__class__(**SMALL, attention_chunk_size=64)
    with pytest.raises(UnsupportedModel, match="chunks"):
        load(with_config(tmp_path, config))


def test_an_attention_that_answers_differently_is_refused(
    tiny_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moonpool.engine.paged_step import PagedStep

    right = PagedStep.attend

    def wrong(
        self: PagedStep,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
    ) -> torch.Tensor:
        return right(self, query, key, value, (scaling or 1.0) * 1.1)

    monkeypatch.setattr(PagedStep, "attend", wrong)
    with pytest.raises(UnsupportedModel, match="answers differently"):
        load(tiny_folder("llama"))


def test_a_folder_without_a_model_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="safetensors"):
        load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"x")
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        load(tmp_path)


def test_an_unknown_model_type_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "never_heard_of"}))
    with pytest.raises(UnsupportedModel, match="does not know"):
        load(tmp_path)


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x")
    own = {"model_type": "own", "auto_map": {"AutoConfig": "configuration_own.OwnConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(own))
    (tmp_path / "configuration_own.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(UnsupportedModel):
        load(tmp_path)


def test_weights_that_are_cut_short_are_refused(tiny_folder: Folder, tmp_path: Path) -> None:
    shutil.copytree(tiny_folder("llama"), tmp_path / "m")
    weights = tmp_path / "m" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelDamaged, match="cannot be read"):
        load(tmp_path / "m")


def test_weights_that_are_missing_are_not_made_up(tiny_folder: Folder, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    shutil.copytree(tiny_folder("llama"), tmp_path / "m")
    weights = load_file(tmp_path / "m" / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "m" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelDamaged, match="up_proj"):
        load(tmp_path / "m")


def test_a_block_size_that_is_no_power_of_two_is_refused(tiny_folder: Folder) -> None:
    with pytest.raises(UnsupportedModel, match="power of two"):
        load(tiny_folder("llama"), block_tokens=48)


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="none of cpu"):
        pick_device("toaster")
    if not torch.cuda.is_available():
        with pytest.raises(UnsupportedModel, match="no CUDA"):
            pick_device("cuda")
        assert pick_device("auto").type == "cpu"


def test_auto_dtype_is_the_models_own_where_the_device_is_fast_in_it() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    own = TINY["llama"].__class__(**SMALL, dtype="bfloat16")
    assert pick_dtype("auto", own, cuda) is torch.bfloat16
    assert pick_dtype("auto", own, cpu) is (torch.bfloat16 if has_fast_bf16() else torch.float32)
    half = TINY["llama"].__class__(**SMALL, dtype="float16")
    assert pick_dtype("auto", half, cuda) is torch.float16
    assert pick_dtype("auto", half, cpu) is torch.float32
    assert pick_dtype("float32", own, cuda) is torch.float32
