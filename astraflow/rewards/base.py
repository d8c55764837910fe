"""Interfaces of rewards and of group rewards."""

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import unwrap
from numbers import Real
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.answer_texts import THOUGHT_BEGIN, THOUGHT_END
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.runtime.config.base import Config
from astraflow.runtime.plugins import Registry

T = TypeVar("T")
C = TypeVar("C", bound=type)

SCORING_METHODS = ("score", "score_with_length", "asking")
"""Methods of which a reward has at least one."""

_kinds: dict[type, str] = {}
"""Kind of each registered class."""


class RewardRegistry(Registry[T]):
    """Registry whose plugins have a method that scores, or that returns the reward of an episode."""

    def register(self, kind: str, *, options: type[Config]) -> Callable[[C], C]:
        """As `Registry.register`. The decorator raises: InvalidInput for a class without a method that scores."""
        decorate = super().register(kind, options=options)

        def checked(plugin: C) -> C:
            if not any(_defines(plugin, method) for method in SCORING_METHODS):
                raise InvalidInput(
                    f"cannot register the reward {kind!r}: its class {plugin.__name__!r} has no method 'score'; add "
                    "score(self, prompt, completion, finish), which returns a number or a Score",
                    code="reward.no_score",
                )
            _kinds[plugin] = kind
            return decorate(plugin)

        return checked


def source_of(reward: "Reward") -> str:
    """Returns the kind of a reward and the place of its method, such as `reward 'mine' (score in mine.py, line 7)`."""
    name = _kinds.get(type(reward), type(reward).__name__)
    method = reward.score_with_length if isinstance(reward, LengthReward) else reward.score
    function = unwrap(getattr(method, "__func__", method))
    code = getattr(function, "__code__", None)
    location = f" ({function.__name__} in {Path(code.co_filename).name}, line {code.co_firstlineno})" if code else ""
    return f"reward {name!r}{location}"


def _defines(plugin: type, method: str) -> bool:
    """Returns whether a class or one of its bases defines the method. A Protocol only declares it."""
    if not isinstance(plugin, type):
        return True  # a factory, which is checked by building it
    bases = (base for base in plugin.__mro__ if Protocol not in base.__bases__)
    return any(callable(vars(base).get(method)) for base in bases)


"""Marks of a thought, which is no part of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Result of a reward that extracts an answer from the completion."""

    value: float
    """A finite number, higher is better."""
    answer: str = ""
    """Normalized answer, so that equal answers are equal strings: evaluations count them as votes. Empty when the
    completion has none."""
    terms: Mapping[str, float] = field(default_factory=dict)
    """Terms of a reward with several, before weighting: metrics of the trajectory, shown and charted."""

    @classmethod
    def of(cls, result: "float | Score") -> "Score":
        """Returns `result` as a score; a plain number has no answer. Raises: InvalidInput for anything else."""
        value = result.value if isinstance(result, Score) else result
        if not isinstance(value, Real | np.bool_):
            raise InvalidInput(
                f"cannot use {_described(result)} as a score: it is no number; give a number, or a Score of one",
                code="reward.invalid_score",
            )
        return result if isinstance(result, Score) else cls(value=float(result))

    @property
    def is_finite(self) -> bool:
        """True if value and terms are finite numbers."""
        return math.isfinite(self.value) and all(math.isfinite(term) for term in self.terms.values())


class Reward(Protocol):
    """Scores the completion of a policy. Built by `rewards.build(spec)` on every node.

    Any exception makes the episode a failure at the boundary `reward`, never a zero reward: a score is a statement
    about the completion, and a broken reward cannot make one.

    A plugin is a class in a module that registers itself; list the module under the entry point group
    `astraflow.rewards`:

        @rewards.register("word_count", options=WordCountOptions)
        class WordCount:
            def __init__(self, options: WordCountOptions) -> None: ...
            def score(self, prompt: Prompt, completion: str, finish: Finish) -> float: ...

    A reward that extracts an answer from the completion returns a `Score`, which holds both.
    """

    def score(self, prompt: Prompt, completion: str, finish: Finish) -> float | Score | Awaitable[float | Score]:
        """Returns a finite number, higher is better, alone or with the answer. Many calls run concurrently.

        completion: the model's text without special tokens. finish: the reason why generation ended. A reward that
        takes more than a millisecond is `async` and works in a thread or a process. A reward that owns processes or
        connections is a `ManagedPlugin`.
        """


@runtime_checkable
class LengthReward(Protocol):
    """A reward that also depends on the length of the completion in tokens. This method is called instead of
    `score`."""

    def score_with_length(
        self, prompt: Prompt, completion: str, finish: Finish, *, tokens: int | None
    ) -> float | Score | Awaitable[float | Score]:
        """Returns what `Reward.score` does. tokens: tokens that the policy wrote, None when the workflow does not
        count them."""


class JudgePolicy(Protocol):
    """A policy that the node serves, as a judge: what it writes is in no trajectory, so it is not trained."""

    @property
    def tokenizer(self) -> ChatTokenizer:
        """Tokenizer and chat format of the policy."""

    async def generate(self, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Continues `prompt`. Any number of calls may run at once. Raises: RolloutFailed at the boundary `engine`."""


@runtime_checkable
class PolicyReward(Protocol):
    """A reward that may ask policies of the run. Its options are `PolicyRewardOptions`."""

    def asking(self, policies: Mapping[PolicyId, JudgePolicy]) -> Reward:
        """Returns the reward for one episode, which asks these policies."""


@runtime_checkable
class PolicyRewardOptions(Protocol):
    """Options that name the policies which a reward asks. Nodes with tasks of the flow serve them, too."""

    @property
    def policies(self) -> tuple[PolicyId, ...]:
        """Policies that the reward asks; empty for a reward that asks none."""


@runtime_checkable
class PromptReader(Protocol):
    """Options of a reward that needs fields of the prompt, so that their absence is seen before a run."""

    @property
    def prompt_fields(self) -> tuple[tuple[str, ...], ...]:
        """Names of the fields, each with those that stand for it."""


async def score_completion(
    reward: Reward, prompt: Prompt, completion: str, finish: Finish, *, tokens: int | None = None
) -> Score:
    """Returns the score of any reward, synchronous or not, with or without the length.

    Raises: whatever the reward raises, InvalidInput when it returns neither a number nor a score.
    """
    if isinstance(reward, LengthReward):
        result = reward.score_with_length(prompt, completion, finish, tokens=tokens)
    else:
        result = reward.score(prompt, completion, finish)
    result = await result if inspect.isawaitable(result) else result
    try:
        return Score.of(result)
    except InvalidInput:
        raise InvalidInput(
            f"cannot use the {source_of(reward)}: it returned {_described(result)}; return a number, or a Score of one",
            code="reward.invalid_score",
        ) from None


def _described(result: object) -> str:
    """Returns a value that is no score, shortened, with its type."""
    text = repr(result)
    return f"{text if len(text) <= 60 else text[:57] + '...'} of type {type(result).__name__}"


def text_field(prompt: Prompt, name: str) -> str:
    """Returns a text of the prompt, such as the correct answer. Raises: InvalidInput when it has none."""
    value = prompt.fields.get(name)
    if not isinstance(value, str):
        field_names = ", ".join(sorted(prompt.fields))
        raise InvalidInput(
            f"cannot score prompt {prompt.id!r}: field {name!r} holds no text; the prompt has {field_names}, set "
            "answer_field to one of them",
            code="reward.no_answer_field",
        )
    return value


def outside_thoughts(text: str) -> str:
    """Returns what follows the last thought of a completion, without a thought that is not finished.

    >>> outside_thoughts("<think>1</think> 2"), outside_thoughts("1</think> 2 <think> 3"), outside_thoughts("<think> 1")
    (' 2', ' 2 ', '')
    """
    return text[text.rfind(THOUGHT_END) + len(THOUGHT_END) if THOUGHT_END in text else 0 :].partition(THOUGHT_BEGIN)[0]


def last_tagged(text: str, tag: str) -> str | None:
    """Returns the text in the last closed tag, None without one.

    >>> last_tagged("<answer>3</answer> no, <answer>4</answer>", "answer")
    '4'
    """
    end = text.rfind(f"</{tag}>")
    begin = text.rfind(f"<{tag}>", 0, max(end, 0))
    return text[begin + len(tag) + 2 : end] if begin >= 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One completion among those of the same policy and role for one prompt."""

    text: str
    """Text of the policy's trajectory after its prompt."""
    reward: float
    """Reward of the trajectory before the group reward."""
    answer: str = ""
    """Normalized answer, empty when there is none."""
    is_truncated: bool = False
    """The completion ended at its length limit."""


class GroupReward(Protocol):
    """Scores the completions of one group by comparing them. Built by `group_rewards.build(spec)` in dataflow.

    It is asked once for each policy and role, after all members have a result and before the filters. It runs beside
    the service, in tasks of the same event loop: it must not block, and one that owns connections is a `ManagedPlugin`.
    An exception is a failure, which is tried again. List the module under the entry point group
    `astraflow.group_rewards`.
    """

    async def scores(self, prompt: Prompt, members: Sequence[GroupMember]) -> Sequence[float]:
        """Returns a finite number for each member, in their order; higher is better. At least one member."""
