"""Workflow of two solvers in parallel and a selector that picks one of their answers."""

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from astraflow.contract.rollouts.limits import EpisodeBounds
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.workflows import workflows
from astraflow.workflows.base import PolicyClients, RewardScorer
from astraflow.workflows.components.answers import AnswerOptions, question_of
from astraflow.workflows.components.roles import (
    Team,
    ask_in_role,
    at_once,
    scored_answer,
    trajectories_of,
)

CANDIDATES = ("A", "B")
SELECTOR_INSTRUCTION = (
    "You are the selector. The candidates answered the same task independently. Compare them and choose the one that "
    "is right. End with <choice>A</choice> or <choice>B</choice>."
)

_CHOICE = re.compile(r"<choice>\s*([AB])\s*</choice>")


def parse_choice(text: str) -> str | None:
    """Returns the candidate that the last tag names; None without a tag.

    >>> parse_choice("The second loop is wrong. <choice>B</choice>"), parse_choice("B")
    ('B', None)
    """
    tags = _CHOICE.findall(text)
    return str(tags[-1]) if tags else None


def selector_reward(choice: str | None, is_correct: Mapping[str, bool]) -> float:
    """Returns 1 or 0 when exactly one candidate is correct, 0.5 when there is nothing to choose, 0 without a choice.

    >>> selector_reward("A", {"A": True, "B": False}), selector_reward("B", {"A": True, "B": True})
    (1.0, 0.5)
    """
    if choice is None:
        return 0.0
    return 0.5 if len(set(is_correct.values())) == 1 else float(is_correct[choice])


class SolveAndSelectOptions(AnswerOptions):
    """Policies of the roles, and limits."""

    solver: Annotated[str, SettableBy.AGENT] = "solver"
    """Policy that writes both candidates."""
    selector: Annotated[str, SettableBy.AGENT] = "selector"
    """Policy that chooses; may be the solver's."""
    choice_max_new_tokens: int = Field(default=512, ge=1)
    """Length limit of a choice. Tokens."""
    correct_threshold: float = 0.5
    """Smallest reward of a correct answer."""


@workflows.register("solve_and_select", options=SolveAndSelectOptions)
class SolveAndSelect(Team):
    """Two candidates in the role `solver`, each with its own reward, then the `selector` picks one.

    The selector gets 1 or 0 for the right or wrong choice when exactly one candidate is correct, 0.5 when both or
    neither are, and 0 for a text without a choice, after which candidate A counts. The chosen candidate is the last
    trajectory of the solver, so evaluations count it.
    """

    def __init__(self, options: SolveAndSelectOptions) -> None:
        super().__init__({"solver": options.solver, "selector": options.selector})
        self._options = options

    @property
    def bounds(self) -> EpisodeBounds:
        return self._options.answer_bounds(trajectories=3)

    async def run(self, task: Task, policies: PolicyClients, scorer: RewardScorer) -> tuple[Trajectory, ...]:
        """Writes two candidates at the same time, and selects one."""
        options, question = self._options, question_of(task.prompt)
        solver = self.role("solver", policies, options)
        answers = await at_once(scored_answer(solver, task, scorer) for _ in CANDIDATES)
        candidates = dict(zip(CANDIDATES, answers, strict=True))
        for name, candidate in candidates.items():
            candidate.labels["candidate"] = name
            candidate.heading = f"candidate {name}"
        selector = self.reviewer(
            "selector", policies, options, SELECTOR_INSTRUCTION, max_new_tokens=options.choice_max_new_tokens
        )
        selection = await ask_in_role(selector, question, tuple(candidates.values()))
        choice = parse_choice(selection.text)
        is_correct = {name: solution.reward >= options.correct_threshold for name, solution in candidates.items()}
        selection.score = selector_reward(choice, is_correct)
        selection.metrics = {"readable": float(choice is not None), "decides": float(len(set(is_correct.values())) > 1)}
        chosen = candidates.pop(choice or CANDIDATES[0])
        selection.parent = chosen
        return trajectories_of((*candidates.values(), chosen, selection))
