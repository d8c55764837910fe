"""Numbers for a model."""

import math


def rounded(value: float) -> float:
    """Rounds to four significant digits, which cost fewer tokens."""
    return float(f"{value:.4g}") if math.isfinite(value) else 0.0


def rounded_or_none(value: float | None) -> float | None:
    """Rounds a value that may be unknown."""
    return None if value is None else rounded(value)


def seconds_left(until: float | None, now: float) -> float:
    """Seconds until then; 0 for a past time or none."""
    return rounded(max(0.0, until - now)) if until is not None else 0.0
