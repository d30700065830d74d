"""Make the tiny base model of the local server: its tokenizer, its chat template and its weights.

    python server/tiny_model/make.py --out DIR

A dense Qwen3 trained from scratch on the chats of corpus.py. It needs no download. A GPU makes it in minutes; a laptop
CPU needs hours, and `--steps` for a try. README.md in this folder says how the shipped weights were made.
"""

import json
import math
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import tyro
from rich.console import Console
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, for textcraft
from server.tiny_model.corpus import Chat, chats

# Qwen's pre-tokenizer: words with one leading sign, single digits, runs of signs, line ends, blanks.
PRE_TOKENIZER = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LENGTHS = (384, 768, 1152, 1536, 2304, 3072)  # chats are padded to one of these; longer ones are cut
# What others say is worth less than replies: the recipes in it are random, and the rules show in the errors.
CONTEXT_WEIGHT = 0.1


@dataclass
class Config:
    """Make the tiny base model."""

    out: Path  # folder for the model
    start: Path | None = None  # go on from the model in this folder instead of from random weights
    seed: int = 0
    steps: int = 8_000
    tokens_per_step: int = 32_768
    lr: float = 2e-3
    warmup: int = 200  # steps
    decay: float = 0.3  # share of the steps, at the end, in which the learning rate falls to 0
    log_every: int = 100  # steps
    workers: int = 14  # processes that write chats
    copy_share: float = 0.05  # of the chats: those that copy any text
    vocabulary: int = 640
    hidden: int = 192
    layers: int = 6
    heads: int = 4  # they share one key and value head, which makes sampling on a CPU twice as fast
    device: str = "cuda" if torch.cuda.is_available() else "cpu"


def train_tokenizer(seed: int, vocabulary: int, samples: int = 2000) -> Tokenizer:
    """A byte-level BPE with single digits, trained on chats."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKENIZER), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (text for chat in islice(chats(random.Random(seed)), samples) for _, text in chat)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, chat: Chat) -> tuple[list[int], list[float]]:
    """Token ids of a chat in its template, and the loss weight of each as a prediction target."""
    start, end = tokenizer.token_to_id(START), tokenizer.token_to_id(END)
    ids: list[int] = []
    weights: list[float] = []
    for role, text in chat:
        head = [start, *tokenizer.encode(f"{role}\n").ids]
        body = [*tokenizer.encode(text).ids, end]
        tail = tokenizer.encode("\n").ids
        own = {"assistant": 1.0, "system": 0.0}.get(role, CONTEXT_WEIGHT)
        ids += head + body + tail
        weights += [0.0] * len(head) + [own] * len(body) + [0.0] * len(tail)
    return ids, weights


Batch = tuple[torch.Tensor, torch.Tensor]  # ids [B, T] int64, weights [B, T] float32


class Batches(torch.utils.data.IterableDataset[Batch]):
    """Batches of chats of similar length; each worker has a random stream of its own, so their order is fixed."""

    def __init__(self, tokenizer: Tokenizer, seed: int, tokens_per_step: int, copy_share: float) -> None:
        self.tokenizer = tokenizer
        self.seed = seed
        self.tokens_per_step = tokens_per_step
        self.copy_share = copy_share

    def __iter__(self) -> Iterator[Batch]:
        worker = torch.utils.data.get_worker_info()
        rng = random.Random(f"{self.seed}/{worker.id if worker else 0}")
        waiting: dict[int, list[tuple[list[int], list[float]]]] = {length: [] for length in LENGTHS}
        for chat in chats(rng, self.copy_share):
            ids, weights = encode(self.tokenizer, chat)
            length = next((length for length in LENGTHS if len(ids) <= length), LENGTHS[-1])
            waiting[length].append((ids[:length], weights[:length]))
            if len(waiting[length]) * length >= self.tokens_per_step:
                yield _pad(waiting.pop(length), length)
                waiting[length] = []


def _pad(rows: list[tuple[list[int], list[float]]], length: int) -> Batch:
    ids = np.zeros((len(rows), length), dtype=np.int64)
    weights = np.zeros((len(rows), length), dtype=np.float32)
    for row, (row_ids, row_weights) in enumerate(rows):
        ids[row, : len(row_ids)] = row_ids
        weights[row, : len(row_weights)] = row_weights
    return torch.from_numpy(ids), torch.from_numpy(weights)


def new_model(config: Config, seed: int) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=config.vocabulary,
            hidden_size=config.hidden,
            intermediate_size=2 * config.hidden,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=1,
            head_dim=config.hidden // config.heads,
            max_position_embeddings=8192,
            rope_parameters={"rope_type": "default", "rope_theta": 1e5},
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=2,
            pad_token_id=0,
        )
    )


def learning_rate(config: Config, step: int) -> float:
    """Warm up, stay, then fall to zero along a straight line."""
    left = (config.steps - step) / (config.decay * config.steps)
    return config.lr * min(1.0, (step + 1) / config.warmup, left)


def loss_of(model: torch.nn.Module, ids: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The weighted mean negative log-likelihood, and that of replies alone (nats per token)."""
    with torch.autocast(ids.device.type, dtype=torch.bfloat16, enabled=ids.device.type == "cuda"):
        logits = model(ids).logits[:, :-1]
    nll = torch.nn.functional.cross_entropy(
        logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
    ).view_as(ids[:, 1:])
    weights = weights[:, 1:]
    replies = weights == 1.0
    return (nll * weights).sum() / weights.sum(), nll[replies].mean().detach()


def train(config: Config, tokenizer: Tokenizer, console: Console) -> Qwen3ForCausalLM:
    if config.start:
        model = Qwen3ForCausalLM.from_pretrained(config.start, dtype=torch.float32)
    else:
        model = new_model(config, config.seed)
    model.to(config.device)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
        fused=config.device == "cuda",
    )
    loader = torch.utils.data.DataLoader(
        Batches(tokenizer, config.seed + 1, config.tokens_per_step, config.copy_share),
        batch_size=None,
        num_workers=config.workers,
        prefetch_factor=8 if config.workers else None,
    )
    started = time.monotonic()
    for step, (ids, weights) in enumerate(islice(loader, config.steps)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step)
        loss, reply_nll = loss_of(model, ids.to(config.device), weights.to(config.device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % config.log_every == 0 or step == config.steps - 1:
            minutes = (time.monotonic() - started) / 60
            console.print(f"step {step}  loss {loss.item():.4f}  replies {reply_nll.item():.4f}  {minutes:.1f} min")
            if not math.isfinite(loss.item()):
                raise RuntimeError("the loss is not finite: lower --lr")
    return model


@torch.no_grad()
def separate_collapsed(model: Qwen3ForCausalLM, seed: int) -> int:
    """Tell apart the tokens that no chat ever used; returns how many there are.

    Training pushes the embeddings of unused tokens all the same way, until they are one vector. LoRA, which leaves the
    (tied) embeddings alone, could then never learn to write one of them and not the others. Half of each is redrawn.
    """
    embeddings = model.get_input_embeddings().weight
    directions = torch.nn.functional.normalize(embeddings, dim=1)
    collapsed = ((directions @ directions.T) > 0.99).sum(dim=1) > 1
    noise = torch.randn(embeddings.shape, generator=torch.Generator().manual_seed(seed)).to(embeddings)
    noise *= embeddings.norm(dim=1, keepdim=True) / noise.norm(dim=1, keepdim=True)
    embeddings[collapsed] = ((embeddings + noise) / math.sqrt(2))[collapsed]
    return int(collapsed.sum())


def save(model: Qwen3ForCausalLM, tokenizer: Tokenizer, out: Path) -> None:
    """Weights in float32 (sampler and trainer then agree), tokenizer and template, as Hugging Face lays a model out."""
    out.mkdir(parents=True, exist_ok=True)
    model.to("cpu", torch.float32).save_pretrained(out)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=END_OF_TEXT, chat_template=CHAT_TEMPLATE
    )
    wrapped.save_pretrained(out)
    # One file less to keep in step: the template belongs to the tokenizer's configuration.
    separate = out / "chat_template.jinja"
    if separate.exists():
        path = out / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": CHAT_TEMPLATE}, indent=2) + "\n")
        separate.unlink()


def main(config: Config) -> None:
    console = Console()
    if config.start:
        tokenizer = Tokenizer.from_file(str(config.start / "tokenizer.json"))
    else:
        tokenizer = train_tokenizer(config.seed, config.vocabulary)
    model = train(config, tokenizer, console)
    console.print(f"separated {separate_collapsed(model, config.seed)} collapsed embeddings")
    save(model, tokenizer, config.out)
    console.print(f"wrote {config.out}, {sum(p.numel() for p in model.parameters()):,} parameters")


if __name__ == "__main__":
    main(tyro.cli(Config))
