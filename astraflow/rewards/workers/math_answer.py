"""Comparison of mathematical answers by computer algebra, in a worker process: it may take forever.

Source: math-verify, https://github.com/huggingface/Math-Verify (Apache-2.0), as used by the paper's recipes.
"""

import logging
from functools import lru_cache
from typing import Any

from math_verify import parse, verify

# The pool limits the time; the library warns that it does not, and about every text that it cannot parse.
logging.disable(logging.CRITICAL)


def is_equal(call: dict[str, Any]) -> bool:
    """Returns whether an answer equals the correct one.

    call: `gold` and `answer`, LaTeX or plain texts; `is_boxed`, whether the answer was extracted from a box, else it is
    a text that contains the answer; `decimals`, places of the comparison of decimal numbers.
    """
    answer = f"\\boxed{{{call['answer']}}}" if call["is_boxed"] else call["answer"]
    parsed_answer = parse(answer, parsing_timeout=None)
    # An interval may be given as the inequality that describes it.
    return bool(
        verify(
            list(_parsed_gold(call["gold"])),
            parsed_answer,
            float_rounding=call["decimals"],
            allow_set_relation_comp=True,
            timeout_seconds=None,
        )
    )


@lru_cache(maxsize=256)
def _parsed_gold(gold: str) -> tuple[Any, ...]:
    """Returns the parsed correct answer, which all members of a group share."""
    return tuple(parse(f"\\boxed{{{gold}}}", parsing_timeout=None))
