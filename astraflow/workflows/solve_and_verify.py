"""Workflow of a solver and a verifier: the verifier approves or rejects with feedback, a rejected solver retries."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.contract.tasks import Prompt, Task
from astraflow.contract.trajectories import Trajectory
from astraflow.runtime.setting_permissions import SettableBy
from astraflow.workflows import workflows
from astraflow.workflows.answers import Answer, AnswerOptions, Message, question_of, request_answer
from astraflow.workflows.base import PolicyClient
from astraflow.workflows.reward_scorer import RewardScorer

APPROVE, REJECT = "APPROVE", "REJECT"

_VERIFICATION_TEMPLATE = (
    "Question:\n{question}\n\nProposed answer:\n{answer}\n\n"
    f"Is the proposed answer right? Reply {APPROVE}, or {REJECT}: and what is wrong with it."
)
_BEFORE_QUESTION, _REST = _VERIFICATION_TEMPLATE.split("{question}")
_BEFORE_ANSWER, _AFTER_ANSWER = _REST.split("{answer}")
_VERDICT = re.compile(rf"\s*(?P<verdict>{APPROVE}|{REJECT})\b[\s:.]*(?P<feedback>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Verdict of a verifier about an answer."""

    approves: bool
    feedback: str


def parse_verdict(reply: str) -> Verdict | None:
    """Parses a verifier's reply; returns None when it is neither approval nor rejection.

    >>> parse_verdict("REJECT: the sign is wrong")
    Verdict(approves=False, feedback='the sign is wrong')
    """
    match = _VERDICT.fullmatch(reply)
    return Verdict(approves=match["verdict"] == APPROVE, feedback=match["feedback"].strip()) if match else None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationRequest:
    """Question and answer that a verifier checks."""

    question: str
    answer: str
    """Answer of the solver, unchanged."""


def verification_prompt(question: str, answer: str) -> str:
    """Returns the prompt for the verifier."""
    return _VERIFICATION_TEMPLATE.format(question=question, answer=answer)


def parse_verification_prompt(text: str) -> VerificationRequest | None:
    """Finds a verification request in a text that contains one; returns None in any other text.

    >>> parse_verification_prompt("user: " + verification_prompt("1+1=", "2"))
    VerificationRequest(question='1+1=', answer='2')
    """
    begin, end = text.find(_BEFORE_QUESTION), text.rfind(_AFTER_ANSWER)
    middle = text.rfind(_BEFORE_ANSWER, begin + len(_BEFORE_QUESTION), max(end, 0)) if begin >= 0 else -1
    if middle < 0:
        return None
    return VerificationRequest(
        question=text[begin + len(_BEFORE_QUESTION) : middle], answer=text[middle + len(_BEFORE_ANSWER) : end]
    )


class SolveAndVerifyOptions(AnswerOptions):
    """Policies of the solve-and-verify workflow, and its limits."""

    solver: Annotated[str, SettableBy.AGENT] = "solver"
    """Policy that answers the question."""
    verifier: Annotated[str, SettableBy.AGENT] = "verifier"
    """Policy that checks the answer."""
    verdict_max_new_tokens: int = Field(default=128, ge=1)
    """Length limit of a verdict. Tokens."""
    correct_threshold: float = 0.5
    """Reward from which an answer counts as correct."""


@workflows.register("solve_and_verify", options=SolveAndVerifyOptions)
class SolveAndVerify:
    """Two policies that improve each other, each trained on its own sequences.

    Every attempt of the solver is a separate trajectory with its own score. The verifier gets 1 when its verdict agrees
    with the score of the answer it saw, else 0; also 0 for a verdict that cannot be parsed, which ends the episode. The
    verifier never sees the correct answer.
    """

    def __init__(self, options: SolveAndVerifyOptions) -> None:
        if options.solver == options.verifier:
            raise InvalidInput(
                f"cannot build workflow 'solve_and_verify': solver and verifier are both {options.solver!r}; name two "
                "policies",
                code="workflow.same_policy",
            )
        self._options = options
        self._solver = PolicyId(options.solver)
        self._verifier = PolicyId(options.verifier)

    @property
    def policies(self) -> tuple[PolicyId, ...]:
        """Solver and verifier."""
        return (self._solver, self._verifier)

    async def run(
        self, task: Task, policies: Mapping[PolicyId, PolicyClient], scorer: RewardScorer
    ) -> tuple[Trajectory, ...]:
        """Solves, verifies, and solves once more if rejected."""
        options, solver, verifier = self._options, policies[self._solver], policies[self._verifier]
        messages = [{"role": "user", "content": question_of(task.prompt)}]
        first = await request_answer(self._solver, solver, messages, options)
        score = await scorer.score(task.prompt, first.text, first.finish, tokens=first.tokens)
        reply = await self._verify(verifier, task.prompt, first)
        verdict = parse_verdict(reply.text)
        agrees = verdict is not None and verdict.approves == (score.value >= options.correct_threshold)
        trajectories = (first.trajectory_builder.build(score), reply.trajectory_builder.build(float(agrees)))
        if verdict is None or verdict.approves:
            return trajectories
        second = await request_answer(self._solver, solver, [*messages, *_retry_messages(first, verdict)], options)
        score = await scorer.score(task.prompt, second.text, second.finish, tokens=second.tokens)
        return (*trajectories, second.trajectory_builder.build(score))

    async def _verify(self, client: PolicyClient, prompt: Prompt, answer: Answer) -> Answer:
        messages = [{"role": "user", "content": verification_prompt(question_of(prompt), answer.text)}]
        limit = self._options.verdict_max_new_tokens
        options = self._options.model_copy(update={"json_schema": "", "stop_strings": ()})  # those of an answer
        return await request_answer(self._verifier, client, messages, options, max_new_tokens=limit)


def _retry_messages(answer: Answer, verdict: Verdict) -> list[Message]:
    feedback = verdict.feedback or "no reason given"
    return [
        {"role": "assistant", "content": answer.text},
        {"role": "user", "content": f"A verifier rejected this answer: {feedback}\nAnswer the question again."},
    ]
