"""What the scripted engine says: the right reply and a wrong one, read off the prompt's text.

- Told to `say WORD` (see `astraflow.datasets.scripted`), the right reply is WORD and a wrong one is `wrong`.
- Asked to verify an answer to such a question (see `astraflow.workflows.solve_and_verify`), the right reply approves
  WORD and rejects all else; a wrong one does the opposite.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from astraflow.contract.errors import InvalidInput
from astraflow.datasets.scripted import cue_in
from astraflow.models.byte_tokenizer import ByteTokenizer
from astraflow.workflows.solve_and_verify import APPROVE, REJECT, assignment_in

TOKENIZER = ByteTokenizer()


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The two things that can be said."""

    right: str
    wrong: str
    difficulty: float
    """0 to 1: the share of the probability of the right reply that the question takes away."""


@lru_cache(maxsize=4096)
def line_for(prompt: bytes) -> Line:
    """The line that answers a prompt, given as the bytes of its int32 tokens.

    Raises: InvalidInput when the text holds no cue.

    >>> line_for(TOKENIZER.encode("difficulty=0.3: say right").tobytes())
    Line(right='right', wrong='wrong', difficulty=0.3)
    """
    text = TOKENIZER.decode(np.frombuffer(prompt, dtype=np.int32), keep_specials=True)
    assigned = assignment_in(text)
    cue = cue_in(assigned.question if assigned else text)
    if cue is None:
        raise InvalidInput(
            f"the scripted engine cannot answer {text[:200]!r}: it finds no `say WORD` in it; "
            "use the dataset kind 'scripted', or an engine with a model"
        )
    if assigned is None:
        return Line(right=cue.word, wrong="wrong", difficulty=cue.difficulty)
    verdicts = (APPROVE, f"{REJECT}: try again")
    is_right = assigned.answer == cue.word
    return Line(right=verdicts[not is_right], wrong=verdicts[is_right], difficulty=cue.difficulty)
