"""What the server's archive of an adapter becomes. The export of a run is in test_scripts.py."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from tinker_client.connection.connect import BackendConfig
from tinker_client.connection.export import CONFIG, WEIGHTS, export_adapter, unpack_adapter
from tinker_client.errors import UserError

LAYER = "base_model.model.model.layers.0"
TENSORS = {
    f"{LAYER}.{module}.lora_{part}.weight": np.ones((2, 2), np.float32)
    for module in ("self_attn.q_proj", "mlp.down_proj")
    for part in "AB"
}


def archive(path: Path, files: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def config(**more: object) -> bytes:
    return json.dumps(
        {"r": 2, "lora_alpha": 32, "base_model_name_or_path": "base", "peft_type": "LORA", **more}
    ).encode()


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("prefix", ["", "./", "adapter/"])
def test_target_modules_are_read_off_the_tensors_where_the_server_names_none(tmp_path: Path, prefix: str, mode: str):
    files = {prefix + WEIGHTS: save(TENSORS), prefix + CONFIG: config(target_modules=None, task_type=None)}
    content = unpack_adapter(archive(tmp_path / "a", files, mode), tmp_path / "out")
    assert content == json.loads((tmp_path / "out" / CONFIG).read_text())
    assert content["target_modules"] == ["down_proj", "q_proj"]
    assert (content["task_type"], content["r"], content["lora_alpha"]) == ("CAUSAL_LM", 2, 32)
    assert (tmp_path / "out" / WEIGHTS).read_bytes() == save(TENSORS)


def test_what_the_server_names_stays(tmp_path: Path):
    files = {WEIGHTS: save(TENSORS), CONFIG: config(target_modules=["q_proj", "down_proj"], note="kept")}
    content = unpack_adapter(archive(tmp_path / "a", files), tmp_path / "out")
    assert (content["target_modules"], content["note"]) == (["q_proj", "down_proj"], "kept")


def test_nothing_else_leaves_the_archive(tmp_path: Path):
    files = {WEIGHTS: save(TENSORS), CONFIG: config(), "../escaped": b"x", "README.md": b"x"}
    unpack_adapter(archive(tmp_path / "a", files), tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [CONFIG, WEIGHTS]
    assert not (tmp_path / "escaped").exists()


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ({"MARKER": b"weights live in GPU memory"}, "merge_lora"),
        ({WEIGHTS: b"none", CONFIG: config()}, "cannot be read"),
        ({WEIGHTS: save(TENSORS), CONFIG: b"{"}, "cannot be read"),
    ],
)
def test_an_archive_without_a_whole_adapter_is_refused(tmp_path: Path, files: dict[str, bytes], line: str):
    with pytest.raises(UserError, match=line):
        unpack_adapter(archive(tmp_path / "a", files), tmp_path / "out")


def test_what_is_there_is_not_overwritten_and_what_is_no_archive_is_refused(tmp_path: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(UserError, match="not empty"):
        export_adapter("tinker://model/weights/name", tmp_path / "out", BackendConfig())
    (tmp_path / "a").write_bytes(b"no archive")
    with pytest.raises(UserError, match="cannot be read"):
        unpack_adapter(tmp_path / "a", tmp_path / "new")
