"""Right and wrong reply of the scripted engine, parsed from the text of the prompt.

- Prompt `say WORD` (see `astraflow.datasets.generated.scripted`): the right reply is WORD, the wrong one is `wrong`.
- Prompt to verify an answer to such a question (see `astraflow.workflows.solve_and_verify`): the right reply approves
  WORD and rejects other answers; the wrong one does the opposite.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.datasets.generated.scripted import parse_scripted_answer
from astraflow.models.byte_tokenizer import ByteTokenizer
from astraflow.workflows.solve_and_verify import APPROVE, REJECT, parse_verification_prompt

TOKENIZER = ByteTokenizer()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedReplies:
    """Right and wrong reply to a prompt."""

    right: str
    wrong: str
    difficulty: float
    """Share, 0 to 1, by which the question reduces the probability of the right reply."""

    def continuing(self, begun: str, *, is_right: bool) -> str:
        """Returns the reply that starts with `begun`; if both do, the one selected by `is_right`."""
        wanted, other = (self.right, self.wrong) if is_right else (self.wrong, self.right)
        return wanted if wanted.startswith(begun) or not other.startswith(begun) else other


@lru_cache(maxsize=4096)
def replies_for(prompt: bytes) -> ScriptedReplies:
    """Returns the replies to a prompt, given as the bytes of its int32 tokens.

    Raises: InvalidInput when the text holds no cue.

    >>> replies_for(TOKENIZER.encode("difficulty=0.3: say right").tobytes())
    ScriptedReplies(right='right', wrong='wrong', difficulty=0.3)
    """
    text = TOKENIZER.decode(np.frombuffer(prompt, dtype=np.int32), keep_special_tokens=True)
    verification = parse_verification_prompt(text)
    cue = parse_scripted_answer(verification.question if verification else text)
    if cue is None:
        raise InvalidInput(
            f"cannot answer {text[:200]!r}: the scripted engine needs `say WORD` in the prompt; use the dataset kind "
            "'scripted', or an engine with a model",
            code="engine.no_cue",
        )
    if verification is None:
        return ScriptedReplies(right=cue.word, wrong="wrong", difficulty=cue.difficulty)
    verdicts = (APPROVE, f"Try again. {REJECT}")
    is_right = verification.answer == cue.word
    return ScriptedReplies(right=verdicts[not is_right], wrong=verdicts[is_right], difficulty=cue.difficulty)


def split_reply(prompt: Int32Array) -> tuple[Int32Array, Int32Array]:
    """Splits a prompt into question and partial reply; the partial reply is empty without the header of a reply.

    >>> question = TOKENIZER.encode_chat([{"role": "user", "content": "say right"}])
    >>> [len(part) for part in split_reply(np.concatenate([question, TOKENIZER.encode("ri")]))] == [len(question), 2]
    True
    """
    starts = np.flatnonzero(prompt == _HEADER[0])
    end = int(starts[-1]) + len(_HEADER) if len(starts) else len(prompt)
    is_reply = np.array_equal(prompt[end - len(_HEADER) : end], _HEADER)
    return (prompt[:end], prompt[end:]) if is_reply else (prompt, prompt[:0])


_HEADER = TOKENIZER.encode_chat([])
"""Header of a reply, with which a prompt for a reply ends."""
