"""Numbers as a model is told them."""

import math


def rounded(value: float) -> float:
    """Four digits are enough, and cost fewer tokens."""
    return float(f"{value:.4g}") if math.isfinite(value) else 0.0


def figure(value: float | None) -> float | None:
    """The same of what may not be known."""
    return None if value is None else rounded(value)


def left(until: float | None, now: float) -> float:
    """Seconds until then; 0 for a time that is over, or none."""
    return rounded(max(0.0, until - now)) if until is not None else 0.0
