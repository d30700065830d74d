"""An adapter on disk: PEFT's form, which samplers load, and with Adam's state beside it what training goes on from.

Both are a tar.gz archive where SkyRL expects one. It holds `adapter_model.safetensors` and `adapter_config.json`, and
that of a training state `optimizer.safetensors` and `base_model.json`. It gets its name only when it is whole.
"""

import gzip
import hashlib
import io
import json
import os
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from transformers import PreTrainedModel

from tinker_client.errors import UserError

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
OPTIMIZER, BASE_MODEL = "optimizer.safetensors", "base_model.json"
_PREFIX = "base_model.model."  # PEFT's, before the path of every tensor


@dataclass(frozen=True)
class BaseModel:
    """The model that adapters are made for: its name for PEFT, and what tells it from others of the same shapes."""

    name: str
    fingerprint: str

    @classmethod
    def of(cls, name: str, model: PreTrainedModel) -> "BaseModel":
        """Reads the first numbers of each parameter, so that it takes no time."""
        digest = hashlib.sha256()
        for path, parameter in model.named_parameters():
            digest.update(f"{path} {tuple(parameter.shape)}".encode())
            digest.update(parameter.detach().flatten()[:64].numpy().tobytes())
        return cls(name, digest.hexdigest())


@dataclass(frozen=True)
class AdapterState:
    """An adapter's tensors by PEFT's names without its prefix, and Adam's, empty before its first step."""

    rank: int
    alpha: float
    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]


def write_training_state(path: Path, state: AdapterState, base: BaseModel) -> None:
    """Write the archive of a training state."""
    files = {OPTIMIZER: save(_contiguous(state.optimizer)), BASE_MODEL: json.dumps(asdict(base)).encode()}
    _write(path, _adapter_files(state, base) | files)


def write_sampler_weights(path: Path, state: AdapterState, base: BaseModel) -> None:
    """Write the archive of a PEFT adapter."""
    _write(path, _adapter_files(state, base))


def write_marker(path: Path) -> None:
    """Write an archive that only says that the weights are in the server's memory, as SkyRL's GPU backends do."""
    _write(path, {"MARKER": b"The weights of this checkpoint live in the server's memory only.\n"})


def read_training_state(path: Path, base: BaseModel, rank: int, alpha: float) -> AdapterState:
    """The state in an archive. Raises UserError if it is missing, damaged, or not one of this model and rank."""
    name = f"{path.parent.name}/{path.name}"
    try:
        # All of the archive is read before any of it is used: that is what checks gzip's checksum.
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(path.read_bytes())), mode="r:") as tar:
            files = {member.name: tar.extractfile(member) for member in tar if member.isfile()}
            content = {file: stream.read() for file, stream in files.items() if stream is not None}
        config = json.loads(content[CONFIG])
        weights, optimizer = load(content[WEIGHTS]), load(content[OPTIMIZER])
        state = AdapterState(
            config["r"], config["lora_alpha"], {k.removeprefix(_PREFIX): t for k, t in weights.items()}, optimizer
        )
        trained_on = BaseModel(**json.loads(content[BASE_MODEL]))
    except FileNotFoundError as error:
        raise UserError(f"there is no state {name}: was it deleted?") from error
    except (OSError, EOFError, zlib.error, tarfile.TarError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"the state {name} is damaged ({error}): load another one") from error
    if trained_on.fingerprint != base.fingerprint:
        raise UserError(f"the state {name} belongs to another base model: start the server with {trained_on.name}")
    if (state.rank, state.alpha) != (rank, alpha):
        raise UserError(
            f"the state {name} has LoRA rank {state.rank} and alpha {state.alpha}, the model rank {rank} and alpha "
            f"{alpha}: create the model with the state's"
        )
    return state


def _adapter_files(state: AdapterState, base: BaseModel) -> dict[str, bytes]:
    modules = sorted({path.rpartition(".lora_")[0].rpartition(".")[2] for path in state.weights})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.name,
        "r": state.rank,
        "lora_alpha": state.alpha,
        "lora_dropout": 0.0,
        "target_modules": modules,
        "bias": "none",
        "inference_mode": True,
    }
    weights = {f"{_PREFIX}{path}": tensor for path, tensor in state.weights.items()}
    return {
        CONFIG: json.dumps(config, indent=2).encode(),
        WEIGHTS: save(_contiguous(weights), metadata={"format": "pt"}),
    }


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}


def _write(path: Path, files: Mapping[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.part")
    with draft.open("wb") as raw:
        # Weights do not compress; gzip is there for its checksum. Without times, equal states are equal files.
        with (
            gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=0, mtime=0) as stream,
            tarfile.open(fileobj=stream, mode="w") as tar,
        ):
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        raw.flush()
        os.fsync(raw.fileno())
    draft.replace(path)
