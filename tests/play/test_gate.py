"""The gate before the server, in simulated time."""

import asyncio

import pytest

from tests import simulated_time
from tinker_client.play.gate import Gate


def test_the_gate_lets_turns_finish_before_an_update_and_holds_back_the_others():
    events: list[tuple[float, str]] = []

    async def turns(gate: Gate, name: str, seconds: float) -> None:
        for _ in range(3):
            async with gate.turn(prompt_tokens=100):
                events.append((asyncio.get_running_loop().time(), f"{name} begins"))
                await asyncio.sleep(seconds)
                events.append((asyncio.get_running_loop().time(), f"{name} ends"))

    async def update(gate: Gate) -> None:
        await asyncio.sleep(2.5)
        await gate.pause()
        events.append((asyncio.get_running_loop().time(), "update begins"))
        await asyncio.sleep(10)
        events.append((asyncio.get_running_loop().time(), "update ends"))
        gate.resume()

    async def both() -> float:
        gate = Gate(None)
        await asyncio.gather(turns(gate, "a", 2), turns(gate, "b", 3), update(gate))
        return gate.busy_s

    busy = simulated_time.run(both())
    begins = next(time for time, what in events if what == "update begins")
    ends = next(time for time, what in events if what == "update ends")
    assert begins == pytest.approx(4)  # the turn of a that was begun at 2
    assert not [
        event for event in events if begins <= event[0] < ends and not event[1].startswith(("update", "a ends"))
    ]
    assert sum(what.endswith("ends") for _, what in events) == 7  # every turn took place
    assert busy == pytest.approx(events[-1][0] - 10)


def test_the_gate_lets_the_shortest_prompts_through_first_and_no_more_than_its_limit():
    begun: list[int] = []
    in_flight = most = 0

    async def turn(gate: Gate, prompt_tokens: int) -> None:
        nonlocal in_flight, most
        async with gate.turn(prompt_tokens):
            begun.append(prompt_tokens)
            in_flight += 1
            most = max(most, in_flight)
            await asyncio.sleep(1)
            in_flight -= 1

    async def play() -> None:
        gate = Gate(2)
        await asyncio.gather(*(turn(gate, tokens) for tokens in (900, 800, 300, 700, 200, 100)))

    simulated_time.run(play())
    assert most == 2
    assert begun == [900, 800, 100, 200, 300, 700]  # the first two found free places


def test_a_cancelled_turn_leaves_its_place_to_others():
    async def play() -> float:
        gate = Gate(1)

        async def turn(seconds: float) -> None:
            async with gate.turn(1):
                await asyncio.sleep(seconds)

        cancelled = [asyncio.ensure_future(turn(1000)) for _ in range(3)]
        await asyncio.sleep(1)
        for task in cancelled:
            task.cancel()
        await asyncio.gather(*cancelled, return_exceptions=True)
        await turn(5)
        await gate.pause()  # hangs if a place is still held
        return gate.busy_s

    assert simulated_time.run(play()) == pytest.approx(6)
