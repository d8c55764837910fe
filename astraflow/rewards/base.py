"""Interface of rewards."""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from astraflow.contract.generation import Finish
from astraflow.contract.tasks import Prompt


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
        """Returns `result` as a score; a plain number has no answer."""
        return result if isinstance(result, Score) else cls(value=float(result))


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
