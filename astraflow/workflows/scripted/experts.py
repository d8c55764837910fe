"""Experts: policies that solve the generated tasks without a model, from the prompt's fields and what a policy reads.

Their episodes are examples for the warm start of a small model.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.datasets.base import ANSWER
from astraflow.datasets.published.loading import fill_template
from astraflow.datasets.worlds.alfworld_games import OPENABLE
from astraflow.runtime.config.base import suggest_name
from astraflow.runtime.plugins import plugin_function
from astraflow.workflows.solve_and_verify import parse_verification_prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Input of an expert for one request."""

    prompt: Prompt
    other: Prompt
    """Another prompt of the dataset, whose answer is wrong for this one in most cases."""
    number: int
    """Number of the episode, from 0."""
    turn: int
    """Number of earlier requests to this policy in this episode."""
    text: str
    """Everything that the policy reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Reply of an expert."""

    text: str
    is_example: bool = True
    """True if a model should imitate the reply; False for a deliberate mistake, which another reply corrects."""


class Expert(Protocol):
    """Replies as a policy would. A pure function."""

    def __call__(self, situation: Situation, /) -> Reply:
        """Returns the reply to a request."""


def fixed_turns(turns: Sequence[str]) -> Expert:
    """Returns an expert that gives these replies in order and then repeats the last one.

    turns: `{name}` stands for a field of the prompt.
    """

    def reply(situation: Situation) -> Reply:
        fields = {name: str(value) for name, value in situation.prompt.fields.items()}
        return Reply(text=fill_template(turns[min(situation.turn, len(turns) - 1)], **fields))

    return reply


def plan(situation: Situation) -> Reply:
    """Follows the plan in the field `answer`, one action in a line."""
    return _step(str(situation.prompt.fields[ANSWER]).splitlines(), situation)


def household(situation: Situation) -> Reply:
    """Plays ALFWorld: opens the receptacles in the order of the first message, because a policy cannot know where the
    object is, and then follows the plan in the field `answer`."""
    planned_actions = str(situation.prompt.fields[ANSWER]).splitlines()
    receptacles = re.findall(r"an? ([a-z]+ \d+)", situation.text.partition("you see ")[2].partition("\n")[0])
    searched = receptacles[: receptacles.index(planned_actions[0].removeprefix("go to "))]
    actions: list[str] = []
    for receptacle in searched:
        actions += [f"go to {receptacle}", *([f"open {receptacle}"] if receptacle.split()[0] in _OPENABLE else [])]
    return _step(
        [*actions, *(action for action in planned_actions if action not in actions or "go to" in action)], situation
    )


def shopper(situation: Situation) -> Reply:
    """Searches WebShop for the words of the goal, opens its product, chooses its options, and buys."""
    goal, asin = (str(situation.prompt.fields[name]) for name in ("question", "asin"))
    wanted = re.findall(r"(?:color|size|fit|capacity|scent|flavor): ([\w -]+?)(?=,|$)", goal)
    page = situation.text.rpartition("Instruction:")[2]
    if "[SEP] Search" in page:
        return Reply(
            text=f"search[{re.sub(' with .*|, and price lower.*', '', goal).removeprefix('i am looking for ')}]"
        )
    if asin in page:
        return Reply(text=f"click[{asin.lower()}]")
    if "Buy Now" not in page:
        return Reply(text="click[next >]")
    missing = [option for option in wanted if f"{option} (chosen)" not in page]
    return Reply(text=f"click[{missing[0] if missing else 'buy now'}]")


def fallible_solver(situation: Situation) -> Reply:
    """Answers correctly, except for one mistake in three of four episodes: as the first reply in two of them and as the
    second reply in one. A mistake is the answer to another prompt, or every second time a number near the right one,
    where that is a whole number, since those are what a verifier finds hard. Mistakes are not examples."""
    is_mistake = (0, 0, 1, None)[situation.number % 4] == situation.turn
    answer = str(situation.prompt.fields[ANSWER])
    return Reply(text=_mistake(answer, situation) if is_mistake else answer, is_example=not is_mistake)


def _mistake(answer: str, situation: Situation) -> str:
    rounds = situation.number // 4
    if rounds % 2 and re.fullmatch(r"\d+", answer):
        near = int(answer) + (1, -1, 2, -2, 3, -3)[rounds // 2 % 6]
        return str(near if near >= 0 else 2 * int(answer) - near)
    return str(situation.other.fields[ANSWER])


def verifier(situation: Situation) -> Reply:
    """Approves of an answer that is equal to the field `answer`."""
    request = parse_verification_prompt(situation.text)
    is_right = request is not None and request.answer.strip() == str(situation.prompt.fields[ANSWER])
    return Reply(text=f"<verdict>{'approve' if is_right else 'reject'}</verdict>")


def selector(situation: Situation) -> Reply:
    """Chooses the candidate that is equal to the field `answer`, the first one if both or neither are."""
    first, second = re.findall(r"\[candidate [AB]\]\n(.*?)\n\n", situation.text, re.DOTALL)
    answer = str(situation.prompt.fields[ANSWER])
    return Reply(text=f"<choice>{'B' if second == answer != first else 'A'}</choice>")


def _step(actions: Sequence[str], situation: Situation) -> Reply:
    """Returns the action of the turn, or its number if the message numbers the actions."""
    action = actions[min(situation.turn, len(actions) - 1)]
    listed = situation.text.rpartition("Actions:\n")[2]
    number = re.search(rf"^(\d+)\. {re.escape(action)}$", listed, re.MULTILINE)
    return Reply(text=number[1] if number else action)


_OPENABLE = frozenset(map(str.lower, OPENABLE))

EXPERTS: Mapping[str, Callable[[Situation], Reply]] = {
    "fallible_solver": fallible_solver,
    "household": household,
    "plan": plan,
    "selector": selector,
    "shopper": shopper,
    "verifier": verifier,
}
"""Experts by name."""


def expert_named(name: str) -> Expert:
    """Returns an expert: one of `EXPERTS`, or a function `module:function` of a plugin. Raises: InvalidInput."""
    if ":" in name:
        return plugin_function(name)
    if name not in EXPERTS:
        raise InvalidInput(
            f"cannot play episodes: unknown expert {name!r}; {suggest_name(name, sorted(EXPERTS))}, or module:function "
            "of a file of your own (--plugin)",
            code="workflow.unknown_expert",
        )
    return EXPERTS[name]
