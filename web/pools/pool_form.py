"""Parses the forms for a pool's bounds and spec."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.pools import PoolSpec
from astraflow.contract.fleet.recommendations import Mode

MOST_TEXT = 2000


def bounds_from(spec: PoolSpec, form: Mapping[str, str]) -> PoolSpec:
    """Spec with the form's bounds and mode. Raises: InvalidInput."""
    mode = form.get("mode") or spec.mode.value
    if mode not in {choice.value for choice in Mode}:
        raise InvalidInput(
            f"cannot set the mode {mode[:40]!r}: unknown; use {', '.join(choice.value for choice in Mode)}",
            code="pool.invalid_mode",
        )
    low, high = (
        int(number_from(form.get(name) or str(getattr(spec, name)), low=0, high=1_000_000, what=name))
        for name in ("min_nodes", "max_nodes")
    )
    return replace(spec, mode=Mode(mode), min_nodes=low, max_nodes=high)


def spec_from(spec: PoolSpec, form: Mapping[str, str]) -> PoolSpec:
    """Spec with the form's fields; missing fields stay unchanged. Raises: InvalidInput."""
    spec = bounds_from(spec, form)
    changes: dict[str, Any] = {name: form[name].strip()[:200] for name in ("type", "region") if name in form}
    for name in ("usd_per_hour_max", "usd_per_day_max"):
        if name in form:
            changes[name] = number_from(form[name], low=0, high=1e9, what=name) if form[name].strip() else None
    if "engine" in form:
        changes["engine"] = form["engine"].strip()[:MOST_TEXT]
    if "capacity" in form:
        text = form["capacity"].strip()
        changes["capacity"] = int(number_from(text, low=1, high=1_000_000, what="capacity")) if text else None
    if "policies" in form:
        changes["policies"] = tuple(filter(None, map(str.strip, form["policies"][:MOST_TEXT].split(","))))
    if "drain_s" in form:
        changes["drain_s"] = number_from(form["drain_s"], low=0, high=86400, what="drain_s")
    if "has_spot" in form:
        changes["is_spot"] = "is_spot" in form
    return replace(spec, **changes)


def number_from(text: str, *, low: float, high: float, what: str) -> float:
    """Number within bounds. Raises: InvalidInput with the field's name."""
    try:
        value = float(text)
    except ValueError:
        raise InvalidInput(
            f"cannot set {what}: {text[:40]!r} is not a number; use {low:g} to {high:g}", code="pool.invalid_number"
        ) from None
    if not low <= value <= high:
        raise InvalidInput(
            f"cannot set {what}: {text[:40]!r} is out of range; use {low:g} to {high:g}", code="pool.invalid_number"
        )
    return value
