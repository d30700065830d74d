"""SkyRL's backend interface on the local trainer and sampler."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from cloudpathlib import AnyPath
from pydantic import BaseModel, ConfigDict, Field
from skyrl.backends.backend import AbstractBackend
from skyrl.backends.renderer import render_model_input
from skyrl.tinker import types
from torch import Tensor
from transformers import AutoTokenizer

from server.local import states
from server.local.losses import Loss
from server.local.model import Snapshot, load_base
from server.local.sampler import Reply, Sampler, SampleRequest
from server.local.trainer import Adam, Datum, NonFiniteError, TokenResults, Trainer
from tinker_client.errors import UserError


class LocalBackendConfig(BaseModel):
    """The keys of `--backend-config`."""

    model_config = ConfigDict(extra="forbid")

    train_micro_batch_tokens: int = Field(1024, gt=0)
    """Sequences are trained on together up to so many tokens. More need more memory and are hardly faster."""
    sample_slots: int = Field(256, gt=0)
    """Conversations whose cache is kept between their turns."""
    sample_cache_bytes: int = Field(1 << 30, gt=0)
    """Memory for these caches, in bytes."""
    kept_snapshots: int = Field(4, gt=0)
    """Sampling weights kept of each model: those of its last so many `save_weights_for_sampler`."""


class LocalBackend(AbstractBackend):  # type: ignore[misc] # SkyRL is untyped here
    """Adapters on one base model that are trained and sampled on this machine's CPU, in float32.

    Losses are summed over tokens and answers have the form of SkyRL's GPU backends. Sampling weights are a snapshot, as
    vLLM's are. A request that cannot be computed fails alone.
    """

    def __init__(self, base_model: str, config: LocalBackendConfig) -> None:
        self.config = config
        model = load_base(base_model)
        self._base = states.BaseModel.of(base_model, model)
        self._base_snapshot = Snapshot({}, 1.0)
        tokenizer = AutoTokenizer.from_pretrained(base_model, local_files_only=True)
        self._sampler = Sampler(model, tokenizer, cache_bytes=config.sample_cache_bytes, slots=config.sample_slots)
        self._trainer = Trainer(model, config.train_micro_batch_tokens)
        self._snapshots: dict[str, OrderedDict[str, Snapshot]] = {}

    def has_model(self, model_id: str) -> bool:
        """Whether this model has been created and not deleted."""
        return model_id in self._trainer

    def create_model(self, model_id: str, lora_config: types.LoraConfig, model_role: str = "policy") -> None:
        """A fresh adapter on all linear layers but the output's. Raises UserError."""
        if model_role != "policy":
            raise UserError(f"the local engine trains policies only, not a {model_role}")
        self._trainer.create(model_id, lora_config.rank, lora_config.alpha, lora_config.seed)
        self._snapshots[model_id] = OrderedDict()

    def delete_model(self, model_id: str) -> None:
        """Forget an adapter, its optimizer and its snapshots."""
        self._trainer.delete(model_id)
        del self._snapshots[model_id]

    def forward_backward(
        self, prepared_batch: types.PreparedModelPassBatch
    ) -> dict[str, types.ForwardBackwardOutput | types.ErrorResponse]:
        """Accumulate the gradients of the requests' losses, each summed over its tokens."""
        answers: dict[str, types.ForwardBackwardOutput | types.ErrorResponse] = {}
        for request_id, model_id, start, end in prepared_batch.request_batch_slices:
            data = _datums(prepared_batch, start, end)
            try:
                loss = Loss.of_request(prepared_batch.all_loss_fns[start], prepared_batch.all_loss_fn_configs[start])
                results = self._trainer.accumulate(model_id, data, loss)
            except (UserError, NonFiniteError) as error:
                answers[request_id] = _failed(error)
                continue
            fields = {"logprobs": results.logprobs}
            if not loss.is_policy_loss:
                fields["elementwise_loss"] = results.losses
            answers[request_id] = _pass_output(fields, _metrics(loss, data, results))
        return answers

    def forward(
        self, prepared_batch: types.PreparedModelPassBatch
    ) -> dict[str, types.ForwardBackwardOutput | types.ErrorResponse]:
        """The logprobs of the requests' targets."""
        answers: dict[str, types.ForwardBackwardOutput | types.ErrorResponse] = {}
        for request_id, model_id, start, end in prepared_batch.request_batch_slices:
            try:
                logprobs = self._trainer.logprobs(model_id, _datums(prepared_batch, start, end))
            except UserError as error:
                answers[request_id] = _failed(error)
                continue
            answers[request_id] = _pass_output({"logprobs": logprobs}, {})
        return answers

    def optim_step(self, model_id: str, request_data: types.OptimStepInput) -> types.OptimStepOutput:
        """One step of Adam with the request's settings. Raises NonFiniteError."""
        adam = Adam(**request_data.adam_params.model_dump())
        norm = self._trainer.step(model_id, adam)
        return types.OptimStepOutput(metrics={"skyrl.ai/grad_norm": norm, "skyrl.ai/learning_rate": adam.learning_rate})

    def prepare_for_sampling(self) -> None:
        """Nothing to do. SkyRL's engine gives a backend that has this and the next method one request at a time."""

    async def sample_batch_async(
        self, prepared_batch: types.PreparedSampleBatch
    ) -> dict[str, types.SampleOutput | types.ErrorResponse]:
        """The replies to each request, which ends when its own last one does."""
        slices = prepared_batch.request_batch_slices
        answers = await asyncio.gather(*(self._sample(prepared_batch, request) for request in slices))
        return {request_id: answer for (request_id, *_), answer in zip(slices, answers, strict=True)}

    def sample(self, prepared_batch: types.PreparedSampleBatch) -> dict[str, types.SampleOutput | types.ErrorResponse]:
        """What `sample_batch_async` gives, for an engine without continuous sampling."""
        return asyncio.run(self.sample_batch_async(prepared_batch))

    async def _sample(
        self, batch: types.PreparedSampleBatch, request: tuple[str, str, int, int, bool, int]
    ) -> types.SampleOutput | types.ErrorResponse:
        _, model_id, start, end, prompt_logprobs, topk_prompt_logprobs = request
        try:
            if topk_prompt_logprobs:
                raise UserError("the local engine has no topk_prompt_logprobs: ask for prompt_logprobs")
            snapshot = self._snapshot(model_id, batch.all_checkpoint_ids[start])
            requests = [
                _sample_request(
                    prompt.prompt_ids, batch.all_sampling_params[start + i], snapshot, prompt_logprobs and i == 0
                )
                for i, prompt in enumerate(render_model_input(batch.all_model_inputs[start:end]))
            ]
            replies: list[Reply] = await asyncio.gather(
                *(asyncio.wrap_future(self._sampler.submit(request)) for request in requests)
            )
        except UserError as error:
            return _failed(error)
        sequences = [
            types.GeneratedSequence(tokens=reply.tokens, logprobs=reply.logprobs, stop_reason=reply.stop_reason)
            for reply in replies
        ]
        return types.SampleOutput(sequences=sequences, prompt_logprobs=replies[0].prompt_logprobs)

    def _snapshot(self, model_id: str, checkpoint_id: str) -> Snapshot:
        if not model_id:
            return self._base_snapshot
        snapshot = self._snapshots[model_id].get(checkpoint_id)
        if snapshot is None:
            raise UserError(
                f"the sampling weights {checkpoint_id} of {model_id} are not kept any more (the last "
                f"{self.config.kept_snapshots} are): save them again and sample from the new client"
            )
        return snapshot

    def save_checkpoint(self, output_path: AnyPath, model_id: str) -> None:
        """Write a training state."""
        states.write_training_state(Path(str(output_path)), self._state(model_id), self._base)

    def load_checkpoint(self, checkpoint_path: AnyPath, model_id: str, load_optimizer: bool) -> None:
        """Go on from a training state, with its optimizer or a fresh one. Raises UserError."""
        rank, alpha = self._trainer.lora(model_id)
        state = states.read_training_state(Path(str(checkpoint_path)), self._base, rank, alpha)
        self._trainer.load(model_id, state.weights, state.optimizer if load_optimizer else {})

    def save_sampler_checkpoint(self, output_path: AnyPath, model_id: str, persist: bool = True) -> None:
        """Take the snapshot that this checkpoint's clients sample from; `persist`: write it as a PEFT adapter too."""
        path = Path(str(output_path))
        if persist:
            states.write_sampler_weights(path, self._state(model_id), self._base)
        else:
            states.write_marker(path)
        kept = self._snapshots[model_id]
        kept[path.name.removesuffix(".tar.gz")] = self._trainer.snapshot(model_id)
        while len(kept) > self.config.kept_snapshots:
            kept.popitem(last=False)

    def _state(self, model_id: str) -> states.AdapterState:
        rank, alpha = self._trainer.lora(model_id)
        return states.AdapterState(
            rank, alpha, self._trainer.weights(model_id), self._trainer.optimizer_state(model_id)
        )


def _datums(batch: types.PreparedModelPassBatch, start: int, end: int) -> list[Datum]:
    inputs = render_model_input(batch.all_model_inputs[start:end])
    return [
        Datum(
            inputs[i - start].prompt_ids,
            batch.all_targets[i],
            batch.all_token_weights[i],
            batch.all_sampling_logprobs[i],
            batch.all_advantages[i],
        )
        for i in range(start, end)
    ]


def _metrics(loss: Loss, data: Sequence[Datum], results: TokenResults) -> dict[str, float]:
    """Some of what SkyRL's GPU backends report, over the tokens of weight other than 0 of one request.

    Theirs are those of all requests that happened to be computed together; entropies are left out, they cost a pass.
    """
    total = sum(losses.sum(dtype=torch.float64).item() for losses in results.losses)
    if not loss.is_policy_loss:
        return {"total_loss:sum": total}
    weights = torch.tensor([w for datum in data for w in datum.weights])
    counted = weights != 0
    logprobs = torch.cat(results.logprobs)[counted]
    sampled = torch.tensor([x for datum in data for x in datum.sampled])[counted]
    advantages = torch.tensor([x for datum in data for x in datum.advantages])[counted]
    metrics = {"total_loss:sum": total, "pg_loss:sum": total}
    if not len(logprobs):
        return metrics
    if loss.name == "importance_sampling":
        metrics["importance_ratio:mean"] = (logprobs - sampled).exp().mean().item()
    else:
        metrics["clip_ratio:mean"] = loss.is_clipped(logprobs, sampled, advantages).float().mean().item()
    gap = (logprobs - sampled).abs()
    return metrics | {
        "rollout_train_logprobs_abs_diff_mean:mean": gap.mean().item(),
        "rollout_train_logprobs_abs_diff_std:mean": gap.std(correction=0).item(),
        "rollout_train_logprobs_abs_diff_max:max": gap.max().item(),
        "rollout_train_logprobs_abs_diff_min:min": gap.min().item(),
    }


def _pass_output(fields: dict[str, list[Tensor]], metrics: dict[str, float]) -> types.ForwardBackwardOutput:
    count = len(next(iter(fields.values())))
    outputs = [{name: _tensor_data(tensors[i]) for name, tensors in fields.items()} for i in range(count)]
    return types.ForwardBackwardOutput(loss_fn_output_type="scalar", loss_fn_outputs=outputs, metrics=metrics)


def _tensor_data(tensor: Tensor) -> dict[str, Any]:
    return {"data": tensor.tolist(), "dtype": "float32", "shape": list(tensor.shape)}


def _sample_request(
    prompt: list[int], params: types.SamplingParams, snapshot: Snapshot, prompt_logprobs: bool
) -> SampleRequest:
    return SampleRequest(
        prompt=prompt,
        max_tokens=params.max_tokens,
        seed=params.seed,
        snapshot=snapshot,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        stop_token_ids=params.stop_tokens or (),
        stop_strings=params.stop_strings or (),
        prompt_logprobs=prompt_logprobs,
    )


def _failed(error: Exception) -> types.ErrorResponse:
    return types.ErrorResponse(error=str(error), status="failed")
