"""Steps per second of environments and games, with their experts: `python -m benchmarks.environments`.

Columns: actions per second of one episode after another, and of 16 episodes at once; milliseconds of a begin and of an
action (median, 95th percentile) in the first case.
"""

import argparse
import asyncio
import json
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import numpy as np

from astraflow.contract.rollouts.tasks import Prompt
from astraflow.datasets import datasets
from astraflow.datasets.worlds.games import GAMES
from astraflow.environments import environments, games
from astraflow.environments.base import EnvironmentFactory, Observation
from astraflow.environments.episodes import Expert, act, begin, plan_of_answer, play
from astraflow.environments.serve import serving_environment
from astraflow.runtime.http.json_service import ServiceAddress
from astraflow.runtime.plugins import start_managed
from tests.environments.experts import recorded_plan, solver
from tests.environments.game_experts import expert_of, play_game
from tests.environments.test_webshop import shopper

Spec = dict[str, Any]
AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Environment to measure."""

    name: str
    environment: Spec
    dataset: Spec
    expert: Expert
    prompts: int = 200
    """Prompts that take turns. Count."""
    is_served: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Results for one environment."""

    name: str
    serial_per_s: float
    at_once_per_s: float
    begin_ms: tuple[float, float]
    act_ms: tuple[float, float]


_TEXTCRAFT = {"kind": "textcraft"}
_WEBSHOP = {"kind": "webshop", "products": 1000}
_GOALS = {"kind": "webshop", "split": "all", "store": {"products": 1000}}
SUBJECTS = (
    Subject(name="textcraft", environment=_TEXTCRAFT, dataset=_TEXTCRAFT, expert=plan_of_answer),
    Subject(
        name="textcraft, 2 worker processes",
        environment={"kind": "process", "of": _TEXTCRAFT, "episodes_per_worker": 8},
        dataset=_TEXTCRAFT,
        expert=plan_of_answer,
    ),
    Subject(name="textcraft, HTTP", environment=_TEXTCRAFT, dataset=_TEXTCRAFT, expert=plan_of_answer, is_served=True),
    Subject(name="webshop, 1,000 products", environment=_WEBSHOP, dataset=_GOALS, expert=shopper),
    Subject(
        name="alfworld, 16 worker processes",
        environment={"kind": "process", "of": {"kind": "alfworld"}, "workers": 16},
        dataset={"kind": "alfworld", "generated": 200},
        expert=plan_of_answer,
    ),
    Subject(
        name="scienceworld, 2 worker processes",
        environment={"kind": "process", "of": {"kind": "scienceworld"}},
        dataset={"kind": "scienceworld", "tasks": ["find-plant"]},
        expert=recorded_plan,
        prompts=4,
    ),
    Subject(
        name="terminal, 20 tasks in the sandbox",
        environment={"kind": "terminal", "is_sample": True, "concurrency": AT_ONCE},
        dataset={"kind": "terminal", "is_sample": True},
        expert=solver,
        prompts=20,
    ),
)


async def measure(subject: Subject, seconds: float) -> Figures:
    """Plays episodes for `seconds`, first one after another and then 16 at once."""
    async with AsyncExitStack() as resources:
        spec = subject.environment
        if subject.is_served:
            url = await resources.enter_async_context(serving_environment(spec, ServiceAddress()))
            spec = {"kind": "http", "url": url}
        factory = environments.build(spec)
        await start_managed([factory], resources)
        dataset = datasets.build(subject.dataset, 0)
        prompts = [dataset.prompt(index) for index in range(subject.prompts)]
        begins, acts, serial = await _serial(factory, prompts, subject.expert, seconds)
        return Figures(
            name=subject.name,
            serial_per_s=serial,
            at_once_per_s=await _at_once(factory, prompts, subject.expert, seconds),
            begin_ms=_percentiles(begins),
            act_ms=_percentiles(acts),
        )


async def _serial(
    factory: EnvironmentFactory, prompts: Sequence[Prompt], expert: Expert, seconds: float
) -> tuple[list[float], list[float], float]:
    begins: list[float] = []
    acts: list[float] = []
    began = perf_counter()
    while (elapsed_s := perf_counter() - began) < seconds:
        prompt = prompts[len(begins) % len(prompts)]
        environment = factory.make()
        at = perf_counter()
        observations = [await begin(factory, environment, prompt, 0)]
        begins.append(perf_counter() - at)
        while observations[-1].ending is None:
            action = expert(prompt, observations)
            at = perf_counter()
            observations.append(await act(factory, environment, action))
            acts.append(perf_counter() - at)
        await environment.close()
    return begins, acts, len(acts) / elapsed_s


async def _at_once(factory: EnvironmentFactory, prompts: Sequence[Prompt], expert: Expert, seconds: float) -> float:
    actions = 0
    began = perf_counter()

    async def episodes(number: int) -> None:
        nonlocal actions
        while perf_counter() - began < seconds:
            observations = await play(factory, prompts[number % len(prompts)], number, expert)
            actions += len(observations) - 1
            number += AT_ONCE

    await asyncio.gather(*(episodes(number) for number in range(AT_ONCE)))
    return actions / (perf_counter() - began)


async def measure_game(name: str, seconds: float) -> Figures:
    """Plays a game of two players, both with the expert, first one after another and then 16 at once."""
    factory, dataset = games.build({"kind": "textarena"}), datasets.build({"kind": "games", "games": [name]}, 0)
    expert = expert_of(name)
    begins: list[float] = []
    acts: list[float] = []

    async def matches(number: int) -> None:
        limit, rng = perf_counter() + seconds, random.Random(number)
        while (at := perf_counter()) < limit:
            game = factory.make()
            turn = await game.begin(dataset.prompt(number % dataset.size), number)
            begins.append(perf_counter() - at)
            observations: tuple[list[Observation], list[Observation]] = ([], [])
            while not turn.is_over:
                observations[turn.player].append(turn.observation)
                action, at = expert(observations[turn.player], rng), perf_counter()
                turn = await game.act(turn.player, action)
                acts.append(perf_counter() - at)
            await game.close()

    await play_game(factory, dataset.prompt(0), (expert, expert))  # imports the game
    began = perf_counter()
    await matches(0)
    begin_ms, act_ms, serial, serial_s = _percentiles(begins), _percentiles(acts), len(acts), perf_counter() - began
    await asyncio.gather(*map(matches, range(AT_ONCE)))
    return Figures(
        name=name,
        serial_per_s=serial / serial_s,
        at_once_per_s=(len(acts) - serial) / (perf_counter() - began - serial_s),
        begin_ms=begin_ms,
        act_ms=act_ms,
    )


def _percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    median, tail = np.percentile(seconds, (50, 95))
    return round(1000 * median, 3), round(1000 * tail, 3)


def table(rows: Sequence[Figures]) -> str:
    """Returns the results as Markdown."""
    lines = ["| environment | actions/s | 16 at once | begin ms | action ms |", "|---|---|---|---|---|"]
    lines += [
        f"| {row.name} | {row.serial_per_s:,.0f} | {row.at_once_per_s:,.0f} | {row.begin_ms[0]} / {row.begin_ms[1]} "
        f"| {row.act_ms[0]} / {row.act_ms[1]} |"
        for row in rows
    ]
    return "\n".join(lines)


def main(write: Callable[[str], object] = print) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="per environment and case")
    parser.add_argument("--only", default="", help="part of the names to measure")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    subjects = [subject for subject in SUBJECTS if options.only in subject.name]
    rows = [asyncio.run(measure(subject, options.seconds)) for subject in subjects]
    rows += [asyncio.run(measure_game(name, options.seconds)) for name in GAMES if options.only in name]
    write(json.dumps([asdict(row) for row in rows]) if options.json else table(rows))


if __name__ == "__main__":
    main()
