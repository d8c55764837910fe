"""The port of rewards."""

from collections.abc import Awaitable
from typing import Protocol

from astraflow.contract.generation import Finish
from astraflow.contract.tasks import Prompt


class Reward(Protocol):
    """Scores what a policy wrote. Built by `rewards.build(spec)` on every node.

    Whatever it raises makes the episode a failure at the boundary `reward`, never a zero: a score is a statement about
    the completion, and a broken reward has none to make.

    A plug-in is a class in a module that registers itself; list the module under the entry point group
    `astraflow.rewards`:

        @rewards.register("word_count", options=WordCountOptions)
        class WordCount:
            def __init__(self, options: WordCountOptions) -> None: ...
            def score(self, prompt: Prompt, completion: str, finish: Finish) -> float: ...
    """

    def score(self, prompt: Prompt, completion: str, finish: Finish) -> float | Awaitable[float]:
        """A finite number, higher is better. Many run at once.

        completion: the model's text without special tokens. finish: whether it ended by itself. What takes longer than
        a millisecond is `async` and does its work in a thread or a process.
        """
