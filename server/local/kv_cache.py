"""Keys and values of conversations, kept between their turns, and the attention over them.

Equal bits: what a row attends to and gets back depends on its own conversation only, neither on its neighbours in the
batch nor on whether its tokens were read together or sampled one by one. Matrix products see to that if a matrix has a
multiple of 4 query rows, and at least MIN_KEYS keys in multiples of KEYS, of which the surplus has probability 0: MKL
splits a shorter sum in parts that depend on its length (measured with torch 2.15 on AVX2).
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from server.local.model import Attend, Snapshot

KEYS = 32
MIN_KEYS = 384
QUERY_ROWS = 4
# Adjacent slots are attended to in one product unless that computes more surplus keys than a call of its own costs:
# about 30 us, in which some 18,000 values (keys times their width) are attended to.
SURPLUS_VALUES = 18_000
CAPACITY_STEP = 256  # tokens by which the room of all slots grows at a time
FIRST_SLOTS = 8

Tokens = np.ndarray[tuple[int], np.dtype[np.int64]]


def round_up(number: int, multiple: int) -> int:
    """The smallest multiple that is not below `number`."""
    return -(-number // multiple) * multiple


@dataclass(frozen=True)
class CacheShape:
    """The sizes of a model that its cache depends on."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, config: Any) -> "CacheShape":
        """The shape of a model with this configuration of transformers."""
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads, head_dim)

    @property
    def group(self) -> int:
        """Query heads that share a key-value head."""
        return self.heads // self.kv_heads

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in float32."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 4


class _Slab:
    """For each layer one tensor of keys and one of values, [slots, kv_heads, capacity, head_dim]."""

    def __init__(self, shape: CacheShape, slots: int, capacity: int) -> None:
        self._shape = shape
        self.slots, self.capacity = slots, capacity
        # Zeros, since what nobody wrote is multiplied with probability 0 and must be finite. Untouched pages are free.
        size = (slots, shape.kv_heads, capacity, shape.head_dim)
        self._keys = [torch.zeros(size) for _ in range(shape.layers)]
        self._values = [torch.zeros(size) for _ in range(shape.layers)]

    def resize(self, kept: Sequence[tuple[int, int]], slots: int, capacity: int) -> None:
        """Move the `kept` slots, as (number, length), to the numbers 0, 1, ... of a slab of another size."""
        for layers in (self._keys, self._values):
            for i, old in enumerate(layers):
                layers[i] = torch.zeros(slots, old.shape[1], capacity, old.shape[3])
                for new, (slot, length) in enumerate(kept):
                    layers[i][new, :, :length] = old[slot, :, :length]
        self.slots, self.capacity = slots, capacity

    def copy(self, source: int, target: int, length: int) -> None:
        """Give a slot the first `length` tokens of another one."""
        for layer in (*self._keys, *self._values):
            layer[target, :, :length] = layer[source, :, :length]

    def reading(self, slot: int, start: int, tokens: int, rows: int) -> Attend:
        """Attention of `tokens` consecutive tokens of one slot from position `start` on, padded to `rows` rows."""
        shape, end = self._shape, start + tokens
        keys_seen = _padded_keys(end)
        future = torch.arange(keys_seen) > torch.arange(start, start + rows)[:, None]
        mask = torch.zeros(rows, keys_seen).masked_fill_(future, -torch.inf).repeat_interleave(shape.group, dim=0)

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            own_keys, own_values = self._keys[layer][slot], self._values[layer][slot]
            own_keys[:, start:end] = keys[:tokens].transpose(0, 1)
            own_values[:, start:end] = values[:tokens].transpose(0, 1)
            grouped = queries.view(rows, shape.kv_heads, shape.group, shape.head_dim).transpose(0, 1)
            grouped = grouped.reshape(shape.kv_heads, rows * shape.group, shape.head_dim)
            seen = _attention(grouped, own_keys[:, :keys_seen], own_values[:, :keys_seen], mask)
            by_row = seen.view(shape.kv_heads, rows, shape.group, shape.head_dim).transpose(0, 1)
            return by_row.reshape(rows, shape.heads * shape.head_dim)

        return attend

    def decoding(self, slots: Sequence[int], positions: Sequence[int]) -> Attend:
        """Attention of one token of each of `slots` [rows], at `positions` [rows]. A slot may be given twice."""
        shape, rows = self._shape, len(slots)
        index, position = torch.tensor(slots), torch.tensor(positions)
        # Slots next to each other are one batched product, without copying their keys.
        size = (self.slots, shape.kv_heads, round_up(shape.group, QUERY_ROWS), shape.head_dim)
        queries_of, seen_of = torch.zeros(size), torch.zeros(size)
        lengths = dict(zip(slots, (position + 1 for position in positions), strict=True))
        surplus = SURPLUS_VALUES // (shape.kv_heads * shape.head_dim)
        runs = [(run, run.mask(lengths, shape.kv_heads)) for run in _runs(lengths, surplus)]

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            all_keys, all_values = self._keys[layer], self._values[layer]
            all_keys[index, :, position] = keys
            all_values[index, :, position] = values
            queries_of[index, :, : shape.group] = queries.view(rows, shape.kv_heads, shape.group, shape.head_dim)
            for run, mask in runs:
                own = slice(run.first, run.last)
                seen = _attention(
                    queries_of[own].flatten(0, 1),
                    all_keys[own].flatten(0, 1)[:, : run.keys],
                    all_values[own].flatten(0, 1)[:, : run.keys],
                    mask,
                )
                seen_of[own] = seen.view_as(seen_of[own])
            return seen_of[index, :, : shape.group].reshape(rows, shape.heads * shape.head_dim)

        return attend


def _attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """softmax(q k / sqrt(head_dim) + mask) v for [batch, queries, head_dim] and [batch, keys, head_dim]."""
    scores = torch.baddbmm(mask, queries, keys.transpose(1, 2), alpha=queries.shape[-1] ** -0.5)
    return torch.bmm(scores.softmax(dim=-1), values)


class _Run(NamedTuple):
    """Adjacent slots [first, last), attended to in one product over `keys` keys."""

    first: int
    last: int
    keys: int

    def mask(self, lengths: Mapping[int, int], kv_heads: int) -> Tensor:
        """0 for keys that a slot has, -inf for the others: [slots * kv_heads, 1, keys]."""
        own = torch.tensor([lengths[slot] for slot in range(self.first, self.last)])
        mask = torch.zeros(len(own), self.keys).masked_fill_(torch.arange(self.keys) >= own[:, None], -torch.inf)
        return mask.repeat_interleave(kv_heads, dim=0)[:, None]


def _runs(lengths: Mapping[int, int], split: float) -> list[_Run]:
    """Slots, given with their lengths, as runs. A run ends where more than `split` surplus keys would be computed."""
    runs: list[_Run] = []
    for slot in sorted(lengths):
        keys = _padded_keys(lengths[slot])
        if runs and runs[-1].last == slot:
            run = runs[-1]
            before, most = slot - run.first, max(run.keys, keys)
            if before * (most - run.keys) + most - keys <= split:
                runs[-1] = _Run(run.first, slot + 1, most)
                continue
        runs.append(_Run(slot, slot + 1, keys))
    return runs


def _padded_keys(length: int) -> int:
    return max(MIN_KEYS, round_up(length, KEYS))


@dataclass(eq=False)
class Slot:
    """The place of one conversation: the keys and values of its first `length` tokens, computed by one snapshot."""

    number: int
    length: int = 0
    room: int = 0  # tokens that its running request may come to; 0 while none runs
    last_use: int = 0
    # A weak reference, so that the cache keeps no adapter alive that nobody samples any more.
    owner: Callable[[], Snapshot | None] = lambda: None


class KVCache:
    """Slots for conversations, found again by their tokens, and given up by least recent use.

    All slots have room for the same number of tokens, which grows and shrinks with what is asked for; their number is
    at most `max_slots`, and what `max_bytes` holds.
    """

    def __init__(self, shape: CacheShape, max_bytes: int, max_slots: int) -> None:
        self._shape, self._max_bytes, self._max_slots = shape, max_bytes, max_slots
        self._clock = count(1)
        self._slots: list[Slot] = []
        self._tokens = np.full((0, 0), -1, dtype=np.int64)  # [slots, capacity], -1 where a slot holds none
        self._slab = _Slab(shape, 0, 0)

    def limit(self, room: int) -> int:
        """How many conversations of `room` tokens can be held at once."""
        return min(self._max_slots, self._max_bytes // (_capacity(room) * self._shape.token_bytes))

    def acquire(self, prompt: Tokens, room: int, snapshot: Snapshot, *, reread: bool = False) -> Slot | None:
        """A slot for a conversation that goes on with `prompt` and comes to at most `room` tokens.

        It holds as much of the prompt as any slot of the snapshot has, but never the last token, whose output is what
        the caller needs; nothing if `reread`. A conversation's own slot is used again, a prefix of another conversation
        copied. None while running requests take all the memory.
        """
        if not self._make_room(room, snapshot):
            return None
        source, matched = self._longest_match(prompt, snapshot)
        if reread:
            matched = 0
        if matched and source.room == 0 and matched == source.length:
            slot = source
        else:
            current = self._current(snapshot)
            idle = (slot for slot in self._slots if slot.room == 0)
            slot = min(idle, key=lambda slot: (slot.owner() in current, slot.last_use))
            if slot is not source:
                self._slab.copy(source.number, slot.number, matched)
            self._tokens[slot.number] = -1
            self._tokens[slot.number, :matched] = prompt[:matched]
        slot.length, slot.room, slot.owner = matched, room, weakref.ref(snapshot)
        return slot

    def release(self, slot: Slot) -> None:
        """The request of a slot has ended; the conversation stays until its place is needed."""
        slot.room, slot.last_use = 0, next(self._clock)

    def reading(self, slot: Slot, tokens: int, rows: int) -> Attend:
        """The attention of a slot's next `tokens` tokens, in a batch padded to `rows` rows; see `append`."""
        return self._slab.reading(slot.number, slot.length, tokens, rows)

    def decoding(self, slots: Sequence[Slot]) -> Attend:
        """The attention of one more token of each slot; see `append`. A slot may be there twice, to fill up a batch."""
        return self._slab.decoding([slot.number for slot in slots], [slot.length for slot in slots])

    def append(self, slot: Slot, tokens: Sequence[int] | Tokens) -> None:
        """Say that the keys and values of the slot's next tokens are there now."""
        end = slot.length + len(tokens)
        self._tokens[slot.number, slot.length : end] = tokens
        slot.length = end

    def _longest_match(self, prompt: Tokens, snapshot: Snapshot) -> tuple[Slot, int]:
        """The slot that shares most leading tokens with all but the prompt's last one, and how many."""
        wanted = prompt[:-1]
        same = self._tokens[:, : len(wanted)] == wanted
        matches = (
            np.where(same.all(axis=1), len(wanted), same.argmin(axis=1)) if len(wanted) else np.zeros(len(same), int)
        )
        matches = np.where([slot.owner() is snapshot for slot in self._slots], matches, 0)
        longest = int(matches.max())
        best = [slot for slot in self._slots if matches[slot.number] == longest]
        # Its own slot rather than one with the same beginning that is in use.
        return next((slot for slot in best if slot.room == 0 and slot.length == longest), best[0]), longest

    def _current(self, snapshot: Snapshot) -> set[Snapshot | None]:
        """The snapshots that are being sampled. Conversations of others are the first to be given up."""
        return {snapshot, *(slot.owner() for slot in self._slots if slot.room)}

    def _make_room(self, room: int, snapshot: Snapshot) -> bool:
        """Whether there is a slot without a request now, of enough tokens."""
        running = [slot for slot in self._slots if slot.room]
        capacity = max(self._slab.capacity, _capacity(room))
        if len(running) >= self.limit(capacity):
            # Perhaps the slots are long only because of a conversation that has ended.
            capacity = _capacity(max([room, *(slot.room for slot in running)]))
            if len(running) >= self.limit(capacity):
                return False
        slots, current = len(self._slots), self._current(snapshot)
        if all(slot.owner() in current for slot in self._slots):
            slots = max(FIRST_SLOTS, 2 * slots)
        slots = min(slots, self.limit(capacity))
        if (slots, capacity) != (self._slab.slots, self._slab.capacity):
            self._resize(slots, capacity)
        return True

    def _resize(self, slots: int, capacity: int) -> None:
        """Give the slab another size. The least recently used conversations go, if it has fewer places."""
        held = [slot for slot in self._slots if slot.length <= capacity and (slot.length or slot.room)]
        kept = sorted(held, key=lambda slot: (slot.room == 0, -slot.last_use))[:slots]
        kept.sort(key=lambda slot: slot.number)
        self._slab.resize([(slot.number, slot.length) for slot in kept], slots, capacity)
        tokens = np.full((slots, capacity), -1, dtype=np.int64)
        for number, slot in enumerate(kept):
            tokens[number, : slot.length] = self._tokens[slot.number, : slot.length]
            slot.number = number
        self._tokens = tokens
        self._slots = kept + [Slot(number) for number in range(len(kept), slots)]


def _capacity(room: int) -> int:
    return max(2 * CAPACITY_STEP, round_up(room, CAPACITY_STEP))
