"""`python -m maintainer eval`: what is asked for, how far it is, and where it is written."""

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.clock import SystemClock
from maintainer.evals.adversarial import ENCOUNTERS, Encounter, encounter
from maintainer.evals.case import Case
from maintainer.evals.cases import CASES, HELD_OUT_SEEDS, TUNING_SEEDS
from maintainer.evals.evaluation import Allowance, Evaluated, Evaluation, Progress
from maintainer.evals.keeping import Kept
from maintainer.evals.leaderboard import line, page, write
from maintainer.llm.models import models
from maintainer.llm.scripted import CHARACTERS

INTERRUPTED = 130
"""As shells say that Ctrl-C ended a command."""


def evaluate(chosen: argparse.Namespace, configured: Mapping[str, Any] | None) -> int:
    """Play, and write the leaderboard; returns the exit code. configured: the [model] of a file; None without one.

    Raises: InvalidInput, Unavailable for a model's service that stays out of reach.
    """
    cases, seeds = _cases(chosen.case), _seeds(chosen.seeds, is_tuning=chosen.tuning)
    kept = Kept(chosen.output.with_suffix(".plays.jsonl"))
    allowance = Allowance(usd=chosen.usd_max, minutes=chosen.minutes_max)
    teller = _Teller(len(seeds))
    evaluations = [
        Evaluation(
            spec,
            cases=cases,
            seeds=seeds,
            kept=kept,
            clock=SystemClock(),
            allowance=allowance,
            is_stand_in=chosen.stand_in,
            on_play=teller.told,
        )
        for spec in _specs(chosen, configured)
    ]
    try:
        found, encounters = asyncio.run(_all(evaluations, _encounters(chosen.encounters), teller))
    except KeyboardInterrupt:
        print(f"\nstopped: what was played is kept in {kept.path}; the same command goes on", file=sys.stderr)  # noqa: T201 (for who stopped it)
        return INTERRUPTED
    write(chosen.output, found, seeds=seeds, encounters=encounters)
    if not any(one.stopped for one in found):
        kept.forget()
    print(f"\n{page(found, seeds=seeds, encounters=encounters)}\nwritten to {chosen.output}")  # noqa: T201 (its output)
    return 0


async def _all(
    evaluations: Sequence[Evaluation], count: int, teller: "_Teller"
) -> tuple[list[Evaluated], list[Encounter]]:
    found = []
    for one in evaluations:
        teller.begin(one.name, is_simulated=one.is_simulated)
        found.append(await one.run())
        teller.ended(found[-1])
    return found, [await encounter(seed) for seed in range(count)]


def _cases(names: Sequence[str]) -> list[Case]:
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise InvalidInput(f"no case is called {unknown[0]!r}: {', '.join(CASES)}")
    return [CASES[name] for name in names or CASES]


def _seeds(count: int | None, *, is_tuning: bool) -> tuple[int, ...]:
    known = TUNING_SEEDS if is_tuning else HELD_OUT_SEEDS
    if count is None:
        return known
    if not 1 <= count <= len(known):
        raise InvalidInput(f"--seeds {count}: there are {len(known)}, and one is the least")
    return known[:count]


def _encounters(count: int | None) -> int:
    if count is not None and count < 0:
        raise InvalidInput(f"--encounters {count}: 0 is the least")
    return ENCOUNTERS if count is None else count


def _specs(chosen: argparse.Namespace, configured: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """What each maintainer is built from."""
    if configured is not None and chosen.model:
        raise InvalidInput("either a configuration or --model: both name one")
    if configured is not None:
        return [configured]
    if not chosen.model:
        return [{"kind": "scripted", "character": name} for name in CHARACTERS]
    spec = {
        "kind": chosen.kind,
        "model": chosen.model,
        "base_url": chosen.base_url,
        "prices": _prices(chosen.prices),
    }
    models.check(spec)
    return [spec]


def _prices(text: str) -> dict[str, float]:
    read, _, written = text.partition(",")
    try:
        return {"input": float(read), "output": float(written)}
    except ValueError:
        raise InvalidInput(
            "--model needs --prices IN,OUT, in US dollars for a million tokens (0,0 for one of your own): budgets and "
            "the board are told in dollars"
        ) from None


class _Teller:
    """A line for each case once all its seeds were played."""

    def __init__(self, seeds: int) -> None:
        self._seeds = seeds
        self._ratios: list[float] = []

    def begin(self, name: str, *, is_simulated: bool) -> None:
        """One maintainer."""
        self._say(f"\n{name}{' (a stand-in, no model)' if is_simulated else ''}")

    def told(self, progress: Progress) -> None:
        """A play is over."""
        self._ratios.append(progress.duel.ratio)
        if progress.done % self._seeds:
            return
        ratio, self._ratios = sum(self._ratios) / self._seeds, []
        took = f"{progress.seconds:.0f} s" if progress.fresh else "kept"
        left = f", about {progress.left_s:.0f} s left" if progress.left_s else ""
        cost = f", {progress.usd:.2f} $" if progress.usd else ""
        done = f"[{progress.done:3d}/{progress.total}] {progress.duel.case:24s}"
        self._say(f"{done} J {ratio:.3f} of the rule's{cost}, {took}{left}")

    def ended(self, found: Evaluated) -> None:
        """All of its plays are."""
        told, self._ratios = line(found), []
        stopped = f"; stopped: {found.stopped}" if found.stopped else ""
        self._say(f"{told.passed} of {told.cases} cases passed{stopped}")

    def _say(self, text: str) -> None:
        print(text, flush=True)  # noqa: T201 (its output)
