"""Which slot of the cache a conversation gets, and how much of its prompt it holds."""

import gc
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from server.local.kv_cache import CacheShape, KVCache, Slot
from server.local.model import Snapshot

SHAPE = CacheShape(layers=1, heads=2, kv_heads=1, head_dim=4)
ROOM = 512  # the smallest capacity of a slot
WEIGHTS = Snapshot({}, scaling=1.0)


def cache_of(slots: int) -> KVCache:
    return KVCache(SHAPE, max_bytes=slots * ROOM * SHAPE.token_bytes, max_slots=100)


def start(cache: KVCache, prompt: Sequence[int], room: int = ROOM, snapshot: Snapshot = WEIGHTS) -> Slot | None:
    return cache.acquire(np.array(prompt), room, snapshot)


def read(cache: KVCache, slot: Slot, tokens: Sequence[int]) -> torch.Tensor:
    """Add tokens whose keys and values are the tokens themselves, and return what the last one attends to."""
    rows = len(tokens) + -len(tokens) % 8
    attend = cache.reading(slot, len(tokens), rows)
    values = torch.zeros(rows, 1, 4)
    values[: len(tokens)] = torch.tensor(tokens, dtype=torch.float32)[:, None, None]
    seen = attend(0, torch.zeros(rows, 2, 4), values, values)
    cache.append(slot, tokens)
    return seen[len(tokens) - 1]


def played(cache: KVCache, tokens: Sequence[int], snapshot: Snapshot = WEIGHTS) -> Slot:
    """A conversation of these tokens, all of them read, that waits for its next turn."""
    slot = start(cache, tokens, snapshot=snapshot)
    assert slot is not None
    read(cache, slot, tokens[slot.length :])
    cache.release(slot)
    return slot


def test_a_conversation_finds_its_own_slot() -> None:
    cache = cache_of(8)
    first, second = played(cache, [1, 2, 3, 4]), played(cache, [1, 2, 8, 9])
    again = start(cache, [1, 2, 3, 4, 5, 6])
    assert again is first
    assert again.length == 4
    assert start(cache, [1, 2, 8, 9, 7]) is second


def test_of_two_equal_conversations_the_one_that_waits_goes_on() -> None:
    cache = cache_of(8)
    running = start(cache, [1, 2, 3])
    assert running is not None
    read(cache, running, [1, 2, 3])
    waiting = played(cache, [1, 2, 3])
    assert start(cache, [1, 2, 3, 4]) is waiting


def test_another_conversation_gets_a_copy_of_a_prefix() -> None:
    """Also of one that is running; never of a prompt's last token, whose output is needed."""
    cache = cache_of(8)
    first = start(cache, [1, 2, 3, 4])
    assert first is not None
    read(cache, first, [1, 2, 3, 4])
    for prompt, shared in (([1, 2, 3, 4, 5], 4), ([1, 2, 3, 4], 3), ([1, 2, 7], 2), ([1], 0), ([7, 1, 2, 3], 0)):
        slot = start(cache, prompt)
        assert slot is not None
        assert slot is not first
        assert slot.length == shared
        mean = torch.tensor(prompt, dtype=torch.float32).mean()  # queries of zero see everything alike
        torch.testing.assert_close(read(cache, slot, prompt[shared:]), mean.expand(8))


def test_a_slot_forgets_what_is_not_part_of_its_new_conversation() -> None:
    cache = cache_of(1)
    played(cache, [1, 2, 3, 4, 5, 6])
    played(cache, [1, 2, 9])
    slot = start(cache, [1, 2, 9, 4, 5, 6, 7])
    assert slot is not None
    assert slot.length == 3


def test_keys_of_other_weights_are_not_used() -> None:
    cache = cache_of(8)
    other = Snapshot({}, scaling=1.0)
    played(cache, [1, 2, 3, 4])
    slot = start(cache, [1, 2, 3, 4, 5], snapshot=other)
    assert slot is not None
    assert slot.length == 0


def test_the_least_recently_used_conversation_goes_first() -> None:
    cache = cache_of(3)
    for first in (1, 2, 3):
        played(cache, [first, 7, 7])
    played(cache, [1, 7, 7, 8])  # used again
    played(cache, [4, 7, 7])  # in place of 2
    slots = [start(cache, [*tokens, 9]) for tokens in ([1, 7, 7, 8], [3, 7, 7], [4, 7, 7])]
    assert [slot is not None and slot.length for slot in slots] == [4, 3, 3]
    assert start(cache, [2, 7, 7, 9]) is None  # all are in use


def test_conversations_of_weights_that_are_gone_make_way_before_others() -> None:
    cache = cache_of(2)
    old = Snapshot({}, scaling=1.0)
    kept = played(cache, [1, 2, 3])
    gone = played(cache, [5, 6, 7], old)
    del old
    gc.collect()
    assert played(cache, [8, 9]) is gone
    assert start(cache, [1, 2, 3, 4]) is kept


@pytest.mark.parametrize(("room", "conversations"), [(ROOM, 8), (ROOM + 1, 5), (8 * ROOM, 1), (8 * ROOM + 1, 0)])
def test_memory_bounds_the_conversations(room: int, conversations: int) -> None:
    cache = cache_of(8)
    assert cache.limit(room) == conversations
    slots = [start(cache, [number, 1], room) for number in range(conversations)]
    assert all(slots)
    if conversations:
        assert start(cache, [99, 1], room) is None


def test_room_changes_with_what_is_asked_for_and_keeps_what_is_held() -> None:
    cache = cache_of(8)
    for number in range(10, 15):
        played(cache, [number, 1])
    running = [start(cache, [number, 1, 2, 3]) for number in range(3)]
    for number, slot in enumerate(running):
        assert slot is not None
        read(cache, slot, [number, 1, 2])
    long = start(cache, [50, 1], room=2 * ROOM)  # now there is room for 4 conversations, each of so many tokens
    assert long is not None
    assert start(cache, [51, 1]) is None
    for number, slot in enumerate(running):
        assert slot is not None
        seen = read(cache, slot, [3])
        torch.testing.assert_close(seen, torch.tensor((number + 6) / 4).expand(8))
        cache.release(slot)
    cache.release(long)
    slots = [start(cache, [number, 1, 2, 3, 4]) for number in range(8)]  # short ones again: as many as at first
    assert [slot and slot.length for slot in slots] == [4, 4, 4, 0, 0, 0, 0, 0]
