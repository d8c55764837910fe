"""`astraflow fleet`: inspects and changes pools through the fleet service, without the page."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from astraflow.cli.option_groups import CallGroup, with_groups
from astraflow.cli.options import Json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from astraflow.cli.run_endpoints import RunEndpoint

T = TypeVar("T")

fleet = typer.Typer(
    name="fleet",
    help="Inspect and scale the pools of a run.",
    no_args_is_help=True,
    add_completion=False,
)

At = Annotated[
    str,
    typer.Option(
        "--address", metavar="HOST:PORT", help="Address of the fleet service; default: the run on this machine."
    ),
]
PoolName = Annotated[str, typer.Argument(help="Name of the pool.")]
PoolOption = Annotated[str, typer.Option("--pool", help="Only this pool.")]
Reason = Annotated[str, typer.Option(help="Reason, recorded in the audit log with your name.")]
Key = Annotated[
    str,
    typer.Option(help="Idempotency key of an earlier attempt; a change is applied once per key."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetGroup(CallGroup):
    """Options of each command that calls the fleet service."""

    at: At = ""
    as_json: Json = False

    @property
    def endpoint(self) -> "RunEndpoint":
        """Fleet service to call. Raises: InvalidInput when it is unknown."""
        return self.find_fleet(self.at)

    def show(self, value: T, table: "Callable[[T], RenderableType]") -> None:
        """Prints a value as a table, or as JSON."""
        from astraflow.cli.output import show

        show(value, table, as_json=self.as_json)


@fleet.command()
@with_groups
def status(
    service: FleetGroup,
) -> None:
    """Show the pools with nodes, targets and costs, the kill switch and open problems."""
    from astraflow.cli.fleet import calls, tables

    service.show(calls.ask(service.endpoint, lambda client: client.status()), tables.status_table)


@fleet.command()
@with_groups
def plan(
    service: FleetGroup,
    pool: PoolName,
    reason: Reason,
    target: Annotated[int | None, typer.Option(min=0, help="Target number of nodes.")] = None,
    retire: Annotated[list[str], typer.Option(metavar="ID", help="Instead of a target: instances to terminate.")] = [],  # noqa: B006 (typer copies it)
    kill: Annotated[bool, typer.Option("--kill", help="Terminate without a drain; for admins.")] = False,
) -> None:
    """Plan a change: launches, terminations, duration, cost and the findings of the guard. Changes nothing."""
    from astraflow.cli.fleet import calls, tables

    request = calls.plan_request(pool, target=target, retire=retire, is_kill=kill, reason=reason)
    new_plan = calls.ask(service.endpoint, lambda client: client.plan(request))
    service.show(new_plan, tables.plan_table)


@fleet.command()
@with_groups
def apply(
    service: FleetGroup,
    plan: Annotated[str, typer.Argument(help="Id of the plan, as `astraflow fleet plan` prints it.")],
    key: Key = "",
) -> None:
    """Apply a plan within five minutes of its creation; applying approves it."""
    from astraflow.cli.fleet import calls, tables

    applied = calls.apply(service.endpoint, plan, key=key)
    service.show(applied, tables.applied_line)


@fleet.command()
@with_groups
def hold(
    service: FleetGroup,
    pool: PoolName,
    reason: Reason,
    minutes: Annotated[float, typer.Option(min=0, max=60, help="Duration; 0 ends the hold.")] = 30.0,
    key: Key = "",
) -> None:
    """Set a hold: no node of the pool is removed for the given time."""
    from astraflow.cli.fleet import calls, tables

    decision = calls.hold(service.endpoint, pool, minutes=minutes, key=key, reason=reason)
    service.show(decision, tables.decision_line)


@fleet.command()
@with_groups
def kill(
    service: FleetGroup,
    switch: Annotated[str, typer.Argument(metavar="on|off", help="`on` stops changes of pools; the run continues.")],
    reason: Reason,
    agents: Annotated[bool, typer.Option("--agents", help="With on: stop only agents.")] = False,
    key: Key = "",
) -> None:
    """Set the kill switch: while it is on, no instance is started or terminated."""
    from astraflow.cli.fleet import calls, tables

    scope = calls.kill_scope(switch, agents=agents)
    decision = calls.kill_switch(service.endpoint, scope, key=key, reason=reason)
    service.show(decision, tables.decision_line)


@fleet.command()
@with_groups
def instances(
    service: FleetGroup,
    pool: PoolOption = "",
    gone: Annotated[bool, typer.Option("--gone", help="Include terminated instances.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of rows, newest first.")] = 100,
) -> None:
    """List the instances, newest first."""
    from astraflow.cli.fleet import calls, tables

    pool_id = calls.pool_id(pool)
    rows = calls.ask(service.endpoint, lambda client: client.instances(pool=pool_id, with_gone=gone, limit=limit))
    service.show(rows, tables.instance_table)


@fleet.command()
@with_groups
def decisions(
    service: FleetGroup,
    pool: PoolOption = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of rows, newest first.")] = 20,
) -> None:
    """List the decisions in the audit log: actor, change and reason, newest first."""
    from astraflow.cli.fleet import calls, tables

    pool_id = calls.pool_id(pool)
    rows = calls.ask(service.endpoint, lambda client: client.decisions(pool=pool_id, limit=limit))
    service.show(rows, tables.decision_table)


@fleet.command()
@with_groups
def providers(
    service: FleetGroup,
) -> None:
    """List the providers: kind, pools and result of the latest preflight check."""
    from astraflow.cli.fleet import calls, tables

    facts = calls.ask(service.endpoint, lambda client: client.providers())
    service.show(facts, tables.provider_table)


@fleet.command()
@with_groups
def preflight(
    service: FleetGroup,
    provider: Annotated[str, typer.Argument(help="Name of the provider, as `astraflow fleet providers` lists it.")],
) -> None:
    """Run the preflight check of a provider, without starting an instance. Exit with code 1 if a check fails."""
    from astraflow.cli.fleet import calls, tables

    result = calls.preflight(service.endpoint, provider)
    service.show(result, tables.preflight_table)
    raise typer.Exit(0 if result.is_ok else 1)
