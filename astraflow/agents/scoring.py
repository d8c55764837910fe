"""Scores of agent episodes: by the flow's reward, a command, a file, a returned value, or a callback."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from astraflow.agents.branches import Scores
from astraflow.agents.programs.base import MAX_OUTPUT_BYTES, ProgramExit, ProgramFeatures, RunningProgram
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.values import Json
from astraflow.rewards.base import Score
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.untrusted_json import parsed_json
from astraflow.sandbox.base import Command, Outcome
from astraflow.workflows.base import RewardScorer, with_short_answer

_MAX_TERMS = 64


class ScoringOptions(Config):
    """Source of the score.

    A command, a file, a returned value and a callback give a JSON value: a number, or an object with `reward` or, for
    several policies, `rewards` by policy, and optionally `terms` and `answer`.
    """

    by: Annotated[Literal["reward", "command", "file", "value", "callback"], SettableBy.RECIPE] = "reward"
    """`reward`: the flow's reward plugin scores a text. `command`: the last line that a command prints after the exit.
    `file`: a file that the program wrote. `value`: what a function returned, or an endpoint replied. `callback`: what
    was posted to `ASTRAFLOW_REWARD_URL` before the exit."""
    text: Annotated[Literal["reply", "stdout", "file", "value"], SettableBy.AGENT] = "reply"
    """Text that the flow's reward scores: the last reply of a policy, the standard output without white space at its
    ends, a file, or the returned text."""
    path: Annotated[str, SettableBy.RECIPE] = ""
    """File with the score or the text, in the program's working directory."""
    command: Annotated[tuple[str, ...], SettableBy.RECIPE] = ()
    """Program and arguments, run where the agent ran. Its standard input is a JSON object with all `fields` of the
    prompt, the last `reply`, and the `exit_status`. Its code belongs into `readable_paths` of the sandbox: the agent
    can change everything in the working directory."""
    command_s: Annotated[float, SettableBy.RECIPE] = Field(default=60.0, gt=0)
    """Time limit of the command. Seconds."""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        reads_file = self.by == "file" or (self.by == "reward" and self.text == "file")
        if reads_file != bool(self.path):
            raise ValueError("set `path` for a score or text in a file, and only then")
        if (self.by == "command") != bool(self.command):
            raise ValueError("set `command` with `by = 'command'`, and only then")
        return self

    def check(self, features: ProgramFeatures) -> None:
        """Checks that a program offers what the score needs. Raises: InvalidInput."""
        text = self.text if self.by == "reward" else ""
        missing = {
            "files": bool(self.path) and not features.has_files,
            "commands": self.by == "command" and not features.has_commands,
            "values": "value" in (self.by, text) and not features.has_value,
        }
        for name, is_missing in missing.items():
            if is_missing:
                raise InvalidInput(
                    f"cannot score the agent by {self.by!r}: its program has no {name}; choose another source of the "
                    "score, or another program",
                    code="agent.score_not_available",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Episode whose program has ended."""

    prompt: Prompt
    program: RunningProgram
    exit: ProgramExit
    reply: str
    """Last reply of a policy, as text."""
    finish: Finish
    """End of the last reply."""
    tokens: int
    """Tokens that the policies wrote. Count."""
    posted: Json
    """Value of the callback; None without one."""
    policies: Sequence[PolicyId]


async def score_episode(options: ScoringOptions, ended: Ended, scorer: RewardScorer) -> Scores:
    """Returns the score of an episode. Raises: RolloutFailed at the boundary `reward`."""
    match options.by:
        case "reward":
            text = await _text(options, ended)
            return await scorer.score(ended.prompt, text, ended.finish, tokens=ended.tokens)
        case "command":
            value = _parsed(await _printed(options, ended), "the command")
        case "file":
            value = _parsed(await _file(options.path, ended), f"the file {options.path!r}")
        case "value":
            value = ended.exit.value
        case "callback":
            value = ended.posted
    return scores_of(value, ended.policies)


def scores_of(value: Json, policies: Sequence[PolicyId]) -> Scores:
    """Returns the scores in a JSON value. Raises: RolloutFailed for anything but finite numbers.

    >>> scores_of({"rewards": {"a": 1, "b": 0}}, (PolicyId("a"), PolicyId("b")))["b"].value
    0.0
    """
    content: Mapping[str, Any] = value if isinstance(value, dict) else {"reward": value}
    terms = content.get("terms", {})
    if not isinstance(terms, dict) or len(terms) > _MAX_TERMS:
        raise _invalid(f"its terms are no object with at most {_MAX_TERMS} numbers")
    numbers = {str(name): _number(term, f"the term {name!r}") for name, term in terms.items()}
    empty = with_short_answer(Score(value=0.0, terms=numbers, answer=str(content.get("answer", ""))))
    if "rewards" not in content:
        return replace(empty, value=_number(content.get("reward"), "the reward"))
    rewards = content["rewards"]
    if not isinstance(rewards, dict) or set(rewards) != set(map(str, policies)):
        raise _invalid(f"`rewards` does not name each of the policies {', '.join(policies)} once")
    return {
        PolicyId(name): replace(empty, value=_number(number, f"the reward of {name!r}"))
        for name, number in rewards.items()
    }


def _number(value: object, name: str) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise _invalid(f"{name} is {str(value)[:100]!r}, no finite number")
    return float(value)


def _parsed(text: str, source: str) -> Json:
    try:
        value: Json = parsed_json(text, limit=MAX_OUTPUT_BYTES)
    except ValueError:
        raise _invalid(f"{source} gives {text[:100]!r}, no JSON value") from None
    return value


async def _text(options: ScoringOptions, ended: Ended) -> str:
    match options.text:
        case "reply":
            return ended.reply
        case "stdout":
            return ended.exit.stdout.strip()
        case "file":
            return await _file(options.path, ended)
        case "value":
            value = ended.exit.value
            return value if isinstance(value, str) else "" if value is None else json.dumps(value)


async def _file(path: str, ended: Ended) -> str:
    """Returns the text of a file; empty when the program wrote none: a reward judges that, as an answer."""
    return (await ended.program.read(path) or "").strip()


async def _printed(options: ScoringOptions, ended: Ended) -> str:
    """Returns the last line that the command prints. Raises: RolloutFailed."""
    program_input = {"fields": dict(ended.prompt.fields), "reply": ended.reply, "exit_status": ended.exit.exit_status}
    command = Command(arguments=options.command, stdin=json.dumps(program_input))
    result = await ended.program.execute(command, timeout_s=options.command_s)
    if result.outcome is not Outcome.PASSED:
        raise _invalid(f"the command ended with {result.outcome.value}: {result.stderr.strip()[-300:]!r}")
    return (result.stdout.strip().splitlines() or [""])[-1]


def _invalid(cause: str) -> RolloutFailed:
    return RolloutFailed(
        f"cannot score the agent's episode: {cause}; give a number, or an object with `reward`",
        boundary=Boundary.REWARD,
        code="agent.invalid_reward",
    )
