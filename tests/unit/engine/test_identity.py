"""What a loaded model says of itself: the fingerprint follows from it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from moonpool.engine.digest import CACHE_NAME, weights_digest
from moonpool.engine.torch_engine import TorchEngine, load_engine
from moonpool.kv import BlockLayout

Folder = Callable[[str], Path]


def identity(path: Path):
    return load_engine(path, name="m", device="cpu", block_tokens=16, threads=1).spec.identity


def test_the_spec_is_read_off_the_model(engines: Callable[[str], TorchEngine]) -> None:
    spec = engines("qwen3").spec
    assert spec.layout == BlockLayout(2, 2, 32, 16, "float32")
    assert (spec.vocab_size, spec.context_tokens, spec.eos_token_ids) == (257, 512, (256,))
    assert json.loads(spec.identity.rope)["rope"]["rope_type"] == "default"


def test_windows_are_found_layer_by_layer(engines: Callable[[str], TorchEngine]) -> None:
    assert engines("gemma3_mixed").windows == (24, 0, 24)
    assert engines("mistral_window").windows == (20, 20)
    assert engines("llama").windows == (0, 0)


def test_the_same_files_have_the_same_fingerprint(tiny_folder: Folder, tmp_path: Path) -> None:
    shutil.copytree(tiny_folder("llama"), tmp_path / "copy")
    config = json.loads((tmp_path / "copy" / "config.json").read_text())
    config["transformers_version"] = "9.9.9"
    (tmp_path / "copy" / "config.json").write_text(json.dumps(config))
    assert identity(tmp_path / "copy").fingerprint() == identity(tiny_folder("llama")).fingerprint()


def test_a_changed_setting_changes_the_fingerprint(tiny_folder: Folder, tmp_path: Path) -> None:
    shutil.copytree(tiny_folder("llama"), tmp_path / "copy")
    config = json.loads((tmp_path / "copy" / "config.json").read_text())
    config["rms_norm_eps"] = 1e-3
    (tmp_path / "copy" / "config.json").write_text(json.dumps(config))
    other = identity(tmp_path / "copy")
    assert [d.split(":")[0] for d in other.differences(identity(tiny_folder("llama")))] == ["rope"]


def test_a_changed_weight_changes_the_digest(tiny_folder: Folder, tmp_path: Path) -> None:
    shutil.copytree(tiny_folder("llama"), tmp_path / "copy")
    before = weights_digest(tmp_path / "copy")
    file = tmp_path / "copy" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert weights_digest(tmp_path / "copy") != before


def test_the_digest_is_remembered_and_a_spoilt_memory_is_ignored(
    tiny_folder: Folder, tmp_path: Path
) -> None:
    shutil.copytree(tiny_folder("llama"), tmp_path / "copy")
    memory = tmp_path / "copy" / CACHE_NAME
    memory.unlink(missing_ok=True)
    first = weights_digest(tmp_path / "copy")
    assert memory.exists()
    for text in ("{", "[]", '{"model.safetensors": 3}'):
        memory.write_text(text)
        assert weights_digest(tmp_path / "copy") == first
