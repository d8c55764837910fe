"""Fleet settings of a recipe for the launch form, computed by the program of the fleet service.

Nothing is started. With provider calls, each provider is asked for permissions and prices, with the credentials of
this process, which a run launched from here would have too.
"""

import json
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from astraflow.cli.fleet.config import fleet_values, remote_pools
from astraflow.contract.errors import DeadlineExceeded, InvalidInput
from astraflow.contract.launching import PoolEstimate, ProviderCheck
from astraflow.recipe.config import Recipe
from astraflow.runtime.config.toml import Values
from astraflow.runtime.folders.private_files import write_private
from astraflow.runtime.imports import require_package

TIMEOUT_S = 50.0
"""Covers two rounds of provider calls and the start of the process."""

TABLES = ("pools", "budget", "limits", "times")
"""Tables that a form may change; providers stay as in the recipe."""

_CHECKS = TypeAdapter(tuple[ProviderCheck, ...])
_COMMAND = (sys.executable, "-m", "maintainer.fleet.preflight_cli")

Inspect = Callable[[Values], dict[str, Any]]
"""Returns the output of the program of the fleet service for a configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetForm:
    """Fleet settings of a recipe, with preflight checks and problems."""

    pools: tuple[PoolEstimate, ...] = ()
    checks: tuple[ProviderCheck, ...] = ()
    usd_per_hour_max: float | None = None
    """Limit for all pools together; None for no limit."""
    usd_per_day_max: float | None = None
    problems: tuple[str, ...] = ()
    """One line for each invalid setting, starting with its name."""
    values: Values | None = None
    """Complete settings with defaults filled in; None with problems."""
    schema: Values | None = None
    """JSON schema of the settings; None without a fleet."""


def fleet_form(recipe: Recipe, inspect: Inspect) -> FleetForm:
    """Returns the recipe's fleet settings, or their problems. inspect: checks a configuration of the fleet service.

    Raises: InvalidInput when the program of the fleet service fails, DeadlineExceeded.
    """
    require_package("sqlmodel", extra="fleet", to="check the fleet settings")
    values = fleet_values(recipe, run="preflight")
    inspection = inspect(values)
    if inspection["problems"]:
        problems = tuple(_problem(line) for line in inspection["problems"])
        return FleetForm(problems=problems, schema=inspection["schema"])
    remote = remote_pools(recipe)
    prices = {name: _number(pool.get("price_per_hour")) for name, pool in _pools(recipe).items()}
    pools = (PoolEstimate(is_remote=pool["name"] in remote, **pool) for pool in inspection["pools"])
    budget = inspection["config"]["budget"]
    return FleetForm(
        pools=tuple(_with_recipe_price(pool, prices.get(pool.name, 0.0)) for pool in pools),
        checks=_CHECKS.validate_python(inspection["checks"]),
        usd_per_hour_max=budget["usd_per_hour_max"],
        usd_per_day_max=budget["usd_per_day_max"],
        values=_editable_values(recipe, inspection["config"]),
        schema=inspection["schema"],
    )


def inspect_once(values: Values, *, calls_providers: bool = False) -> dict[str, Any]:
    """Runs the program of the fleet service on a configuration and returns its output. calls_providers: with prices and
    preflight checks, which take seconds."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fleet.json"
        write_private(file, json.dumps(values))
        command = [*_COMMAND, str(file), "--json", *([] if calls_providers else ["--no-calls"])]
        try:
            process = subprocess.run(  # noqa: S603 (a list of arguments, no shell)
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise DeadlineExceeded(
                f"cannot check the providers of the recipe: no answer within {TIMEOUT_S:g} s; try again later",
                code="fleet.preflight_timeout",
            ) from None
    if process.returncode:
        last_line = process.stderr.strip().splitlines()[-1:]
        raise _failed(f"its output: {''.join(last_line)}")
    inspection: dict[str, Any] = json.loads(process.stdout)
    return inspection


class FleetProgram:
    """Program of the fleet service that stays, so that each further configuration takes milliseconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def inspect(self, values: Values) -> dict[str, Any]:
        """Returns the program's output for a configuration, without calls to providers. Raises: InvalidInput."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(  # noqa: S603 (a list of arguments, no shell)
                    [*_COMMAND, "--lines"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            output = self._exchange(self._process, json.dumps(values))
        inspection: dict[str, Any] = json.loads(output)
        return inspection

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def _exchange(self, process: "subprocess.Popen[str]", line: str) -> str:
        assert process.stdin is not None and process.stdout is not None  # noqa: S101 (pipes)
        with suppress(BrokenPipeError):  # it has ended, and has no output
            process.stdin.write(line + "\n")
            process.stdin.flush()
        answers, _, _ = select.select([process.stdout], [], [], TIMEOUT_S)
        output = process.stdout.readline() if answers else ""
        if not output:
            process.kill()
            process.communicate()
            raise _failed("it gave no answer; its errors are in the log of the page")
        return output


def _failed(cause: str) -> InvalidInput:
    return InvalidInput(
        f"cannot check the fleet settings: the program of the fleet service failed; {cause}",
        code="fleet.preflight_failed",
    )


def _problem(line: str) -> str:
    """Returns the problem with the setting's name in the recipe, without the value for a problem of the whole table."""
    return f"fleet{line.partition(' (found {')[0]}" if line.startswith(":") else f"fleet.{line}"


def _editable_values(recipe: Recipe, config: Values) -> Values:
    """Returns the recipe's table with defaults filled in, without a pool derived from other tables."""
    tables = {name: config[name] for name in TABLES if name != "pools"}
    recipe_pools = recipe.fleet.get("pools")
    pools = {name: config["pools"][name] for name in recipe_pools} if isinstance(recipe_pools, dict) else {}
    return {**recipe.fleet, **tables, **({"pools": pools} if pools else {})}


def _with_recipe_price(pool: PoolEstimate, usd: float) -> PoolEstimate:
    """Returns the pool with the recipe's price where the provider has none."""
    return (
        pool if pool.node_usd_per_hour or not usd else replace(pool, node_usd_per_hour=usd, price_source="the recipe")
    )


def _pools(recipe: Recipe) -> dict[str, Values]:
    pools = recipe.dataflow.get("pools", {})
    return {name: pool for name, pool in pools.items() if isinstance(pool, dict)} if isinstance(pools, dict) else {}


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
