"""A solver answers, a verifier approves or rejects with feedback, and a rejected solver tries once more."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.contract.tasks import Prompt, Task
from astraflow.contract.trajectories import Trajectory
from astraflow.runtime.overrides import SetBy
from astraflow.workflows import workflows
from astraflow.workflows.asking import Answer, AnswerOptions, Message, ask, question_of
from astraflow.workflows.base import PolicyPort
from astraflow.workflows.judge import Judge

APPROVE, REJECT = "APPROVE", "REJECT"

_ASSIGNMENT = (
    "Question:\n{question}\n\nProposed answer:\n{answer}\n\n"
    f"Is the proposed answer right? Reply {APPROVE}, or {REJECT}: and what is wrong with it."
)
_BEFORE_QUESTION, _REST = _ASSIGNMENT.split("{question}")
_BEFORE_ANSWER, _AFTER_ANSWER = _REST.split("{answer}")
_VERDICT = re.compile(rf"\s*(?P<verdict>{APPROVE}|{REJECT})\b[\s:.]*(?P<feedback>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a verifier said about an answer."""

    approves: bool
    feedback: str


def parse_verdict(reply: str) -> Verdict | None:
    """A verifier's reply; None when it is neither approval nor rejection.

    >>> parse_verdict("REJECT: the sign is wrong")
    Verdict(approves=False, feedback='the sign is wrong')
    """
    found = _VERDICT.fullmatch(reply)
    return Verdict(approves=found["verdict"] == APPROVE, feedback=found["feedback"].strip()) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a verifier looks at."""

    question: str
    answer: str
    """As the solver gave it."""


def assignment(question: str, answer: str) -> str:
    """What the verifier is asked."""
    return _ASSIGNMENT.format(question=question, answer=answer)


def assignment_in(text: str) -> Assignment | None:
    """What a verifier is asked, found in a text that holds it; None in any other text.

    >>> assignment_in("user: " + assignment("1+1=", "2"))
    Assignment(question='1+1=', answer='2')
    """
    begin, end = text.find(_BEFORE_QUESTION), text.rfind(_AFTER_ANSWER)
    middle = text.rfind(_BEFORE_ANSWER, begin + len(_BEFORE_QUESTION), max(end, 0)) if begin >= 0 else -1
    if middle < 0:
        return None
    return Assignment(
        question=text[begin + len(_BEFORE_QUESTION) : middle], answer=text[middle + len(_BEFORE_ANSWER) : end]
    )


class SolveAndVerifyOptions(AnswerOptions):
    """Who solves and who verifies."""

    solver: Annotated[str, SetBy.AGENT] = "solver"
    """The policy that answers the question."""
    verifier: Annotated[str, SetBy.AGENT] = "verifier"
    """The policy that judges the answer."""
    verdict_max_new_tokens: int = Field(default=128, ge=1)
    """Length limit of a verdict."""
    right_from: float = 0.5
    """An answer counts as right when the reward gives it at least this much."""


@workflows.register("solve_and_verify", options=SolveAndVerifyOptions)
class SolveAndVerify:
    """Two policies that make each other better, each trained on its own sequences.

    Every attempt of the solver is a sequence of its own, rewarded with its own score. The verifier gets 1 when its
    verdict agrees with the score of the answer it saw, else 0; also 0 for a verdict that cannot be read, after which
    nothing is tried again. The verifier is never shown the right answer.
    """

    def __init__(self, options: SolveAndVerifyOptions) -> None:
        if options.solver == options.verifier:
            raise InvalidInput(
                f"workflow solve_and_verify: solver and verifier are both {options.solver!r}; name two policies"
            )
        self._options = options
        self._solver = PolicyId(options.solver)
        self._verifier = PolicyId(options.verifier)

    @property
    def policies(self) -> tuple[PolicyId, ...]:
        """Solver and verifier."""
        return (self._solver, self._verifier)

    async def run(self, task: Task, policies: Mapping[PolicyId, PolicyPort], judge: Judge) -> tuple[Trajectory, ...]:
        """Solve, verify, and solve once more if rejected."""
        options, solver, verifier = self._options, policies[self._solver], policies[self._verifier]
        asked = [{"role": "user", "content": question_of(task.prompt)}]
        first = await ask(self._solver, solver, asked, options)
        score = await judge.score(task.prompt, first.text, first.finish)
        reply = await self._verify(verifier, task.prompt, first)
        verdict = parse_verdict(reply.text)
        agrees = verdict is not None and verdict.approves == (score.value >= options.right_from)
        trajectories = (first.transcript.trajectory(score), reply.transcript.trajectory(float(agrees)))
        if verdict is None or verdict.approves:
            return trajectories
        second = await ask(self._solver, solver, [*asked, *_retry(first, verdict)], options)
        score = await judge.score(task.prompt, second.text, second.finish)
        return (*trajectories, second.transcript.trajectory(score))

    async def _verify(self, port: PolicyPort, prompt: Prompt, answer: Answer) -> Answer:
        messages = [{"role": "user", "content": assignment(question_of(prompt), answer.text)}]
        limit = self._options.verdict_max_new_tokens
        return await ask(self._verifier, port, messages, self._options, max_new_tokens=limit)


def _retry(answer: Answer, verdict: Verdict) -> list[Message]:
    feedback = verdict.feedback or "no reason given"
    return [
        {"role": "assistant", "content": answer.text},
        {"role": "user", "content": f"A verifier rejected this answer: {feedback}\nAnswer the question again."},
    ]
