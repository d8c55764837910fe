"""Scripted experts of environments whose prompts hold no plan."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from astraflow.contract.rollouts.tasks import Prompt
from astraflow.datasets.worlds.terminal import SAMPLE_TASKS
from astraflow.environments.base import Observation


def recorded_plan(prompt: Prompt, observations: Sequence[Observation]) -> str:
    """Returns the next action of the gold path that ScienceWorld generated for the variation."""
    return _plans()[f"{prompt.fields['task']}/{prompt.fields['variation']}"][len(observations) - 1]


def solver(prompt: Prompt, observations: Sequence[Observation]) -> str:
    """Returns the solution of a sample task of the terminal, and then `submit`."""
    if len(observations) > 1:
        return "submit"
    return (SAMPLE_TASKS / str(prompt.fields["task"]) / "solution" / "solve.sh").read_text()


@cache
def _plans() -> dict[str, list[str]]:
    plans: dict[str, list[str]] = json.loads((Path(__file__).parent / "scienceworld_plans.json").read_text())
    return plans
