"""A pool's bounds and spec as a form sends them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from astraflow.contract.advice import Mode
from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet import PoolSpec

MOST_TEXT = 2000


def bounds_from(spec: PoolSpec, form: Mapping[str, str]) -> PoolSpec:
    """The spec with other bounds and another mode. Raises: InvalidInput."""
    mode = form.get("mode") or spec.mode.value
    if mode not in {known.value for known in Mode}:
        raise InvalidInput(f"{mode[:40]!r} is no mode: {', '.join(known.value for known in Mode)}")
    low, high = (
        int(number_from(form.get(name) or str(getattr(spec, name)), low=0, high=1_000_000, what=name))
        for name in ("min_nodes", "max_nodes")
    )
    return replace(spec, mode=Mode(mode), min_nodes=low, max_nodes=high)


def spec_from(spec: PoolSpec, form: Mapping[str, str]) -> PoolSpec:
    """The spec as a form has it; fields that are not in the form stay. Raises: InvalidInput."""
    spec = bounds_from(spec, form)
    more: dict[str, Any] = {name: form[name].strip()[:200] for name in ("type", "region") if name in form}
    for name in ("usd_per_hour_max", "usd_per_day_max"):
        if name in form:
            more[name] = number_from(form[name], low=0, high=1e9, what=name) if form[name].strip() else None
    if "engine" in form:
        more["engine"] = form["engine"].strip()[:MOST_TEXT]
    if "capacity" in form:
        text = form["capacity"].strip()
        more["capacity"] = int(number_from(text, low=1, high=1_000_000, what="capacity")) if text else None
    if "drain_s" in form:
        more["drain_s"] = number_from(form["drain_s"], low=0, high=86400, what="drain_s")
    if "has_spot" in form:
        more["is_spot"] = "is_spot" in form
    return replace(spec, **more)


def number_from(text: str, *, low: float, high: float, what: str) -> float:
    """A number within bounds. Raises: InvalidInput that names it."""
    try:
        value = float(text)
    except ValueError:
        raise InvalidInput(f"{what} is a number, not {text[:40]!r}") from None
    if not low <= value <= high:
        raise InvalidInput(f"{what} is between {low:g} and {high:g}, not {text[:40]}")
    return value
