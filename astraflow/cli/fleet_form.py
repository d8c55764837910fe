"""The fleet of a recipe, as whoever launches it sees it: asked of the fleet service's own program, which knows it.

Nothing is started. With calls, each provider is asked whether it would start a machine, and at which price; it is asked
with the credentials of this process, which are those that a run launched from here would have.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.fields import FieldInfo

from astraflow.cli.fleet import fleet_values, pools_elsewhere
from astraflow.contract.errors import DeadlineExceeded, InvalidInput
from astraflow.recipe import Recipe
from astraflow.runtime.toml import Values

TIMEOUT_S = 50.0
"""Two rounds of calls at the longest, and the start of the process."""

TABLES = ("pools", "budget", "envelope", "times")
"""What a form may change; providers stand there as the recipe has them."""

_TYPES: Mapping[str, Any] = {"integer": int, "number": float, "string": str, "boolean": bool, "null": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOffer:
    """A pool of the recipe: how many machines, from whom, at what price."""

    name: str
    provider: str
    kind: str
    """Of the provider."""
    is_elsewhere: bool
    """Its machines are others than this one."""
    first_nodes: int
    """It begins with so many."""
    min_nodes: int
    max_nodes: int
    usd_per_hour_max: float | None
    usd_per_day_max: float | None
    node_usd_per_hour: float | None
    """None as long as nobody has said."""
    price_source: str
    """Who has said it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCheck:
    """One thing that a provider was asked."""

    provider: str
    kind: str
    """`list`, `launch` or `price`."""
    pool: str
    """Empty for what is of no pool in particular."""
    is_ok: bool
    message: str
    to_do: str
    """What would help; empty when nothing has to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetForm:
    """What a recipe says of its machines."""

    pools: tuple[PoolOffer, ...] = ()
    checks: tuple[FleetCheck, ...] = ()
    usd_per_hour_max: float | None = None
    """Of all pools together; None for unbounded."""
    usd_per_day_max: float | None = None
    problems: tuple[str, ...] = ()
    """A line for each mistake, which begins with the setting."""
    values: Values | None = None
    """What it says in full, with what is left out as it is by default; None with problems."""
    schema: Values | None = None

    def info(self, path: Sequence[str]) -> FieldInfo | None:
        """What is known of the setting at a path in its table; None for nothing."""
        found = _at(self.schema or {}, self.schema or {}, path)
        return _as_field(found) if found is not None else None


def fleet_form(recipe: Recipe, *, asks: bool) -> FleetForm:
    """What the recipe's `fleet` comes to, or what is wrong with it. asks: call providers, which takes seconds.

    Raises: InvalidInput when the fleet service's program cannot be run, DeadlineExceeded.
    """
    values = fleet_values(recipe, run="rehearsal")
    told = _told(values, asks=asks)
    if told["problems"]:
        problems = tuple(_problem(line) for line in told["problems"])
        return FleetForm(problems=problems, schema=told["schema"])
    elsewhere = pools_elsewhere(recipe)
    prices = {name: _number(pool.get("price_per_hour")) for name, pool in _pools(recipe).items()}
    pools = (PoolOffer(is_elsewhere=pool["name"] in elsewhere, **pool) for pool in told["pools"])
    budget = told["config"]["budget"]
    return FleetForm(
        pools=tuple(_priced(pool, prices.get(pool.name, 0.0)) for pool in pools),
        checks=tuple(FleetCheck(**check) for check in told["checks"]),
        usd_per_hour_max=budget["usd_per_hour_max"],
        usd_per_day_max=budget["usd_per_day_max"],
        values=_changeable(recipe, told["config"]),
        schema=told["schema"],
    )


def _told(values: Values, *, asks: bool) -> dict[str, Any]:
    """What the fleet service's program says of a configuration."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fleet.json"
        file.touch(mode=0o600)
        file.write_text(json.dumps(values))
        command = [sys.executable, "-m", "maintainer.fleet.rehearsal", str(file), "--json"]
        command += [] if asks else ["--no-calls"]
        try:
            done = subprocess.run(  # noqa: S603 (a list of arguments, no shell)
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise DeadlineExceeded(f"the recipe's providers did not answer within {TIMEOUT_S:g} s") from None
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        raise InvalidInput(f"the fleet service's program cannot look at the recipe: {''.join(last)}")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def _problem(line: str) -> str:
    """With the setting as the recipe has it; of what is wrong with the whole table, not the table again."""
    return f"fleet{line.partition(' (found {')[0]}" if line.startswith(":") else f"fleet.{line}"


def _changeable(recipe: Recipe, config: Values) -> Values:
    """The recipe's table with defaults filled in. A pool that the recipe does not name is made from the rest of it."""
    full = {name: config[name] for name in TABLES if name != "pools"}
    own = recipe.fleet.get("pools")
    pools = {name: config["pools"][name] for name in own} if isinstance(own, dict) else {}
    return {**recipe.fleet, **full, **({"pools": pools} if pools else {})}


def _priced(pool: PoolOffer, usd: float) -> PoolOffer:
    """With the recipe's own price where the provider has none."""
    return (
        pool if pool.node_usd_per_hour or not usd else replace(pool, node_usd_per_hour=usd, price_source="the recipe")
    )


def _pools(recipe: Recipe) -> dict[str, Values]:
    found = recipe.dataflow.get("pools", {})
    return {name: pool for name, pool in found.items() if isinstance(pool, dict)} if isinstance(found, dict) else {}


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _at(root: Values, schema: Values, path: Sequence[str]) -> Values | None:
    """The part of a JSON schema that a path leads to."""
    for key in path:
        schema = _resolved(root, schema)
        inside = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
        if not isinstance(inside, dict):
            return None
        schema = inside
    return {**_resolved(root, schema), **{key: schema[key] for key in ("description", "default") if key in schema}}


def _resolved(root: Values, schema: Values) -> Values:
    reference = schema.get("$ref")
    found: Values = root["$defs"][reference.rpartition("/")[2]] if reference else schema
    return found


def _as_field(schema: Values) -> FieldInfo:
    """As pydantic has it."""
    choices = [part for part in schema.get("anyOf", [schema]) if part.get("type") in _TYPES]
    types = [_TYPES[part["type"]] for part in choices]
    annotation: Any = reduce(or_, types) if len(types) > 1 else types[0] if types else str
    if "enum" in schema:
        annotation = Literal[tuple(schema["enum"])]
    bounded = next((part for part in choices if part.get("type") != "null"), schema)
    rules = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
    bounds = {rule: bounded[name] for rule, name in rules.items() if name in bounded}
    description = schema.get("description", "")
    return FieldInfo.from_annotation(Annotated[annotation, Field(description=description, **bounds)])  # type: ignore[arg-type]  # made of parts that only a schema knows
