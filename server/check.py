"""What is wrong with a configuration of server/configs, as far as SkyRL's configuration classes tell. Needs no GPU.

Runs in whichever environment has SkyRL, so it imports nothing else of this project: `python server/check.py FILE.json`
prints one problem a line, and exits with 3 if there is any.
"""

import dataclasses
import difflib
import json
import sys
from pathlib import Path
from typing import Any, get_args

FOUND = 3  # the exit status, which neither Python nor uv gives by itself
KEYS = {"model", "gpus", "context_length", "backend_config"}
ENGINE = "generator.inference_engine"
PLACEMENT = "trainer.placement"
MERGE_LORA = "trainer.policy.megatron_config.lora_config.merge_lora"


def problems(config: dict[str, Any]) -> list[str]:
    """One line for each problem of a configuration file's content, with the key that it is about.

    Checked are the names and types of all keys, SkyRL's own checks when it builds the sections of its configuration,
    and what it would only notice on the GPUs. Not checked: what `engine_init_kwargs` hands through to vLLM, and whether
    the memory is enough. Raises ImportError if SkyRL's configuration classes cannot be imported.
    """
    # Imported here, so that this module can be imported without SkyRL.
    from omegaconf import OmegaConf  # noqa: PLC0415
    from skyrl.train.config.config import (  # noqa: PLC0415
        GeneratorConfig,
        SkyRLTrainConfig,
        build_nested_dataclass,
        overrides_dict_to_dotlist,
    )

    if wrong := sorted(KEYS ^ config.keys()):
        return [f"{key}: a configuration has exactly {', '.join(sorted(KEYS))}" for key in wrong]
    overrides = config["backend_config"]
    if not isinstance(overrides, dict):
        return ["backend_config: is an object of dotted keys"]
    found = [problem for key, value in overrides.items() if (problem := _key_problem(SkyRLTrainConfig, key, value))]
    if found:
        return found
    # As skyrl/backends/skyrl_train_backend.py does for an adapter of rank 32, but by sections: building the whole would
    # import the samplers' packages.
    given = {
        **overrides,
        "trainer.policy.model.path": config["model"],
        "trainer.strategy": "megatron",
        "trainer.policy.model.lora.rank": 32,
        "trainer.policy.model.lora.alpha": 32,
    }
    nested: Any = OmegaConf.to_container(OmegaConf.from_cli(overrides_dict_to_dotlist(given)))
    kinds = {field.name: field.type for field in dataclasses.fields(SkyRLTrainConfig)}
    try:
        sections = {name: build_nested_dataclass(kinds[name], values) for name, values in nested.items()}
    except (ValueError, TypeError, AssertionError) as error:
        return [" ".join(str(error).split())]
    return _late_problems(sections["trainer"], sections.get("generator") or GeneratorConfig(), config)


def _key_problem(root: type, key: str, value: Any) -> str | None:
    """What is wrong with the dotted `key` of the nested dataclass `root`, or with its value's type."""
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - comes with SkyRL

    section: Any = root
    names = key.split(".")
    for depth, name in enumerate(names):
        fields = {field.name: field for field in dataclasses.fields(section)}
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            hint = f", did you mean {'.'.join([*names[:depth], near[0]])}?" if near else ""
            return f"{key}: {section.__name__} has no {name}{hint}"
        kind: Any = fields[name].type
        section = next((k for k in (kind, *get_args(kind)) if dataclasses.is_dataclass(k)), None)
        if section is None:
            if depth + 1 < len(names):
                # Below a dictionary, everything is handed through.
                return None if "dict" in str(kind).lower() else f"{key}: {'.'.join(names[: depth + 1])} has no parts"
            try:
                TypeAdapter(kind).validate_python(value, strict=True)
            except ValidationError as error:
                return f"{key}: {error.errors()[0]['msg']}, not {json.dumps(value)}"
            return None
    return f"{key}: is a section, give its keys one by one, such as {key}.{dataclasses.fields(section)[0].name}"


def _late_problems(trainer: Any, generator: Any, config: dict[str, Any]) -> list[str]:
    """What SkyRL finds out minutes after its start, or never says."""
    placement, engine, policy = trainer.placement, generator.inference_engine, trainer.policy
    megatron = policy.megatron_config
    trainer_gpus = placement.policy_num_nodes * placement.policy_num_gpus_per_node
    parts = megatron.tensor_model_parallel_size * megatron.pipeline_model_parallel_size * megatron.context_parallel_size
    sampler_gpus = (
        engine.num_engines * engine.tensor_parallel_size * engine.pipeline_parallel_size * engine.data_parallel_size
    )
    gpus = trainer_gpus if placement.colocate_all else trainer_gpus + sampler_gpus
    found = []
    if placement.colocate_all and trainer_gpus != sampler_gpus:
        found.append(
            f"{PLACEMENT}.colocate_all: trainer and samplers share GPUs, but there are {trainer_gpus} for the trainer "
            f"and {sampler_gpus} for the samplers"
        )
    elif gpus != config["gpus"]:
        found.append(f"gpus: is {config['gpus']}, but trainer and samplers take {gpus}")
    if trainer_gpus % parts:
        found.append(f"{PLACEMENT}.policy_num_gpus_per_node: {trainer_gpus} GPUs do not divide into parts of {parts}")
    if megatron.lora_config.merge_lora:
        found.append(f"{MERGE_LORA}: must be false, or the adapter that is sampled from does not exist on the samplers")
    if policy.language_model_only != engine.language_model_only:
        found.append(f"{ENGINE}.language_model_only: must be that of trainer.policy.language_model_only")
    if engine.engine_init_kwargs.get("max_model_len") != config["context_length"]:
        found.append(f"{ENGINE}.engine_init_kwargs.max_model_len: must be context_length, {config['context_length']}")
    if policy.model.lora.max_cpu_loras is not None and policy.model.lora.max_cpu_loras < policy.model.lora.max_loras:
        found.append("trainer.policy.model.lora.max_cpu_loras: must be at least max_loras")
    return found


if __name__ == "__main__":
    lines = problems(json.loads(Path(sys.argv[1]).read_text()))
    for line in lines:
        print(line)
    sys.exit(FOUND if lines else 0)
