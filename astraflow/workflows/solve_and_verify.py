"""Workflow of a solver and a verifier, which approves or rejects an answer; a rejected solver tries once more."""

import re
from dataclasses import dataclass
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
    TEAM_HEADER,
    Team,
    ask_in_role,
    scored_answer,
    trajectories_of,
)

APPROVE, REJECT = "<verdict>approve</verdict>", "<verdict>reject</verdict>"
VERIFIER_INSTRUCTION = (
    "You are the verifier. Check whether the solver's answer is right, and say what is wrong with it. "
    f"End with {APPROVE} or {REJECT}."
)
RETRY_INSTRUCTION = "You are the solver. The verifier rejected your answer. Answer the task again."

_TAGGED = re.compile(r"<verdict>\s*(approve|reject)\s*</verdict>", re.IGNORECASE)
_APPROVING, _REJECTING = re.compile(r"\bapprove", re.IGNORECASE), re.compile(r"\breject", re.IGNORECASE)


def parse_verdict(text: str) -> bool | None:
    """Returns whether a verifier approves; None for a text that cannot be read.

    The last tag counts. A text without a tag counts when it says only one of `approve` and `reject`.

    >>> parse_verdict("2 + 2 is 4. <verdict>approve</verdict>"), parse_verdict("I reject this."), parse_verdict("Hm.")
    (True, False, None)
    """
    tags = _TAGGED.findall(text)
    if tags:
        return bool(tags[-1].lower() == "approve")
    approves, rejects = bool(_APPROVING.search(text)), bool(_REJECTING.search(text))
    return None if approves == rejects else approves


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationRequest:
    """Question and answer that a verifier checks."""

    question: str
    answer: str
    """Answer of the solver, unchanged."""


def verification_prompt(question: str, answer: str) -> str:
    """Returns the prompt for the verifier."""
    return f"{question}{_BEFORE_ANSWER}{answer}{_AFTER_ANSWER}"


def parse_verification_prompt(text: str) -> VerificationRequest | None:
    """Finds a verification request in a text that contains one; returns None in any other text.

    >>> parse_verification_prompt(verification_prompt("1+1=", "2"))
    VerificationRequest(question='1+1=', answer='2')
    """
    middle, end = text.find(_BEFORE_ANSWER), text.rfind(_AFTER_ANSWER)
    if not 0 <= middle < end:
        return None
    return VerificationRequest(question=text[:middle], answer=text[middle + len(_BEFORE_ANSWER) : end])


_BEFORE_ANSWER = f"\n\n{TEAM_HEADER}\n\n[solver]\n"
_AFTER_ANSWER = f"\n\n{VERIFIER_INSTRUCTION}"


class SolveAndVerifyOptions(AnswerOptions):
    """Policies of the roles, and limits."""

    solver: Annotated[str, SettableBy.AGENT] = "solver"
    """Policy that answers the question."""
    verifier: Annotated[str, SettableBy.AGENT] = "verifier"
    """Policy that checks the answer; may be the solver's."""
    verdict_max_new_tokens: int = Field(default=512, ge=1)
    """Length limit of a verification. Tokens."""
    correct_threshold: float = 0.5
    """Smallest reward of a correct answer."""


@workflows.register("solve_and_verify", options=SolveAndVerifyOptions)
class SolveAndVerify(Team):
    """Two roles that improve each other, each trained on its own trajectories: `solver`, `verifier`, `solver.retry`.

    Each attempt of the solver has its own reward. The verifier gets 1 when its verdict agrees with the reward of the
    attempt it saw, else 0; also 0 for a text that cannot be read, which counts as approval. The verifier never sees the
    correct answer, and its whole text is shown to the retry. There is no second verification.
    """

    def __init__(self, options: SolveAndVerifyOptions) -> None:
        super().__init__({"solver": options.solver, "verifier": options.verifier})
        self._options = options

    @property
    def bounds(self) -> EpisodeBounds:
        return self._options.answer_bounds(trajectories=3)

    async def run(self, task: Task, policies: PolicyClients, scorer: RewardScorer) -> tuple[Trajectory, ...]:
        """Solves, verifies, and solves once more if rejected."""
        options = self._options
        first = await scored_answer(self.role("solver", policies, options), task, scorer)
        verifier = self.reviewer(
            "verifier", policies, options, VERIFIER_INSTRUCTION, max_new_tokens=options.verdict_max_new_tokens
        )
        check = await ask_in_role(verifier, question_of(task.prompt), (first,))
        verdict = parse_verdict(check.text)
        check.score = float(verdict is not None and verdict == (first.reward >= options.correct_threshold))
        check.metrics = {"approves": float(verdict is not False), "readable": float(verdict is not None)}
        if verdict is not False:
            return trajectories_of((first, check))
        solver = self.role("solver.retry", policies, options, instruction=RETRY_INSTRUCTION)
        second = await scored_answer(solver, task, scorer, (first, check))
        return trajectories_of((first, check, second))
