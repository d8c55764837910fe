"""Comparison of mathematical answers in a worker process: what it computes is bounded, but takes milliseconds."""

from typing import Any

from astraflow.rewards.mathematics.comparison import is_equal
from astraflow.rewards.mathematics.votes import vote


def compare(call: dict[str, Any]) -> dict[str, Any]:
    """Returns whether an answer equals the correct one, `is_equal`, and the text of a different one, `vote`.

    call: `gold` and `answer`, LaTeX or plain texts; `decimals`, places of the comparison of decimal numbers.
    """
    is_correct = is_equal(call["gold"], call["answer"], decimals=call["decimals"])
    return {"is_equal": is_correct, "vote": "" if is_correct else vote(call["answer"])}
