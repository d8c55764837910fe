"""`astraflow maintainer`: runs, inspects, controls and evaluates the maintainer of a run."""

import getpass
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from astraflow.cli.options import Authority, Directory, TokenFile, read_token

if TYPE_CHECKING:
    from astraflow.cli.run_endpoints import PlaneEndpoints
    from astraflow.client.fleet_plane import FleetPlaneClient

T = TypeVar("T")

maintainer = typer.Typer(
    help="Maintain the pools of a run with an LLM (docs/how-to/maintainer.md).", no_args_is_help=True
)

Fleet = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Address of the fleet service; default: the run on this machine.")
]
Dataflow = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Address of dataflow; default: the run on this machine.")
]
Config = Annotated[
    Path | None, typer.Argument(help="TOML file with model, mode and budgets; default: a scripted model.")
]


Plan = Annotated[str, typer.Argument(help="Id of the plan, as `astraflow maintainer proposals` prints it.")]
Key = Annotated[str, typer.Option(help="Idempotency key of an earlier attempt; a change is applied once per key.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value, for scripts.")]


@maintainer.command()
def run(
    config: Config = None,
    dataflow: Dataflow = "",
    fleet: Fleet = "",
    directory: Directory = Path("maintainer-state"),
    token_file: TokenFile = None,
    authority: Authority = None,
) -> None:
    """Run the maintainer until it is stopped."""
    from astraflow.cli.services.roles import run_maintainer

    run_maintainer("run", _planes(dataflow, fleet, token_file, authority), config=config, directory=directory)


@maintainer.command()
def once(
    config: Config = None,
    dataflow: Dataflow = "",
    fleet: Fleet = "",
    directory: Directory = Path("maintainer-state"),
    token_file: TokenFile = None,
    authority: Authority = None,
) -> None:
    """Wake the maintainer once, without a signal, and show its status."""
    from astraflow.cli.services.roles import run_maintainer

    run_maintainer("once", _planes(dataflow, fleet, token_file, authority), config=config, directory=directory)


@maintainer.command()
def prompt(
    config: Config = None,
    dataflow: Dataflow = "",
    fleet: Fleet = "",
    token_file: TokenFile = None,
    authority: Authority = None,
    is_offline: Annotated[
        bool, typer.Option("--offline", help="Without a run: only the system prompt and the tools.")
    ] = False,
) -> None:
    """Show the exact prompt for the model. Makes no call to a model."""
    from astraflow.cli.services.roles import run_maintainer

    planes = None if is_offline else _planes(dataflow, fleet, token_file, authority)
    run_maintainer("prompt", planes, config=config)


@maintainer.command()
def replay(file: Annotated[Path, typer.Argument(help="Path of a transcript.jsonl.")]) -> None:
    """Check every plan of a transcript with the current guard; show differing verdicts and exit with code 1."""
    from astraflow.cli.services.roles import replay_maintainer

    replay_maintainer(file)


@maintainer.command(name="eval")
def evaluate(
    config: Annotated[Path | None, typer.Argument(help="TOML file with a model; default: the scripted models.")] = None,
    model: Annotated[str, typer.Option(help="Name of a model behind the Messages API, instead of a file.")] = "",
    kind: Annotated[str, typer.Option(help="API of --model: messages_api or chat_completions.")] = "messages_api",
    base_url: Annotated[str, typer.Option(help="Base URL of the service of --model.")] = "",
    prices: Annotated[
        str, typer.Option(metavar="IN,OUT", help="Prices of --model: US dollars per million tokens.")
    ] = "",
    is_simulated: Annotated[
        bool, typer.Option("--simulated", help="Mark the results as results of a simulated model.")
    ] = False,
    case: Annotated[list[str], typer.Option(help="Name of a case; default: all 24.")] = [],  # noqa: B006 (typer copies it)
    seeds: Annotated[int | None, typer.Option(help="Number of held-out seeds; default: all.")] = None,
    is_tuning: Annotated[
        bool, typer.Option("--tuning", help="Use the tuning seeds instead of the held-out seeds.")
    ] = False,
    encounters: Annotated[
        int | None, typer.Option(help="Number of short cases with a model that makes random calls; default: 200.")
    ] = None,
    usd_max: Annotated[
        float | None, typer.Option(help="Cost limit per model in US dollars; results so far are written.")
    ] = None,
    minutes_max: Annotated[
        float | None, typer.Option(help="Time limit per model in minutes; results so far are written.")
    ] = None,
    output: Annotated[Path, typer.Option(help="JSON file; Markdown tables are written next to it.")] = Path(
        "leaderboard.json"
    ),
) -> None:
    """Score a model against the rule in simulated runs with the real guard. A hosted model needs its API key."""
    from astraflow.cli.services.roles import run_maintainer

    options = {
        "--model": model,
        "--kind": kind,
        "--base-url": base_url,
        "--prices": prices,
        "--output": output,
        "--seeds": seeds,
        "--encounters": encounters,
        "--usd-max": usd_max,
        "--minutes-max": minutes_max,
    }
    arguments = [part for name, value in options.items() if value not in (None, "") for part in (name, str(value))]
    arguments += [part for name in case for part in ("--case", name)]
    arguments += ["--simulated"] if is_simulated else []
    arguments += ["--tuning"] if is_tuning else []
    run_maintainer("eval", None, config=config, arguments=arguments)


@maintainer.command()
def status(fleet: Fleet = "", token_file: TokenFile = None, authority: Authority = None) -> None:
    """Show the status of the maintainer and its waiting proposals."""
    from astraflow.cli.maintainer.settings import show_maintainer

    async def request(plane: "FleetPlaneClient") -> None:
        show_maintainer(await plane.maintainer(), await plane.proposals())

    _call(request, fleet, token_file, authority)


@maintainer.command()
def mode(
    mode: Annotated[str, typer.Argument(help="off, shadow, propose or auto.")],
    reason: Annotated[str, typer.Option(help="Reason, recorded in the audit log with your name.")] = "by hand",
    fleet: Fleet = "",
    token_file: TokenFile = None,
    authority: Authority = None,
) -> None:
    """Set the mode of the maintainer."""
    from astraflow.contract.errors import InvalidInput
    from astraflow.contract.fleet.maintainer import MaintainerMode
    from astraflow.contract.fleet.plans import Actor, Role

    modes = [known_mode.value for known_mode in MaintainerMode]
    if mode not in modes:
        raise InvalidInput(
            f"cannot set the mode {mode[:40]!r}: it is unknown; use one of {', '.join(modes)}",
            code="maintainer.unknown_mode",
        )
    actor = Actor(name=getpass.getuser(), role=Role.OPERATOR)

    async def request(plane: "FleetPlaneClient") -> None:
        decision = await plane.set_maintainer_mode(
            MaintainerMode(mode), actor=actor, key=f"cli:{secrets.token_hex(8)}", reason=reason
        )
        typer.echo(decision.message)

    _call(request, fleet, token_file, authority)


@maintainer.command()
def proposals(
    is_all: Annotated[bool, typer.Option("--all", help="Include decided proposals: the latest hundred.")] = False,
    as_json: Json = False,
    fleet: Fleet = "",
    token_file: TokenFile = None,
    authority: Authority = None,
) -> None:
    """List the proposals that wait for approval: effect, findings of the guard and expiry."""
    from astraflow.cli.fleet.tables import show
    from astraflow.cli.maintainer.approvals import proposal_list

    async def request(plane: "FleetPlaneClient") -> None:
        show(await plane.proposals(only_waiting=not is_all), proposal_list, as_json=as_json)

    _call(request, fleet, token_file, authority)


@maintainer.command()
def approve(
    plan: Plan,
    reason: Annotated[str, typer.Option(help="Reason, recorded in the audit log with your name.")] = "",
    key: Key = "",
    as_json: Json = False,
    fleet: Fleet = "",
    token_file: TokenFile = None,
    authority: Authority = None,
) -> None:
    """Approve a proposal and apply it, if the guard still allows it."""
    from astraflow.cli.fleet.tables import applied_line, show
    from astraflow.cli.maintainer import approvals
    from astraflow.contract.fleet.plans import PlanId

    async def request(plane: "FleetPlaneClient") -> None:
        applied = await approvals.approve(plane, PlanId(plan), key=key, reason=reason)
        show(applied, applied_line, as_json=as_json)

    _call(request, fleet, token_file, authority)


@maintainer.command()
def reject(
    plan: Plan,
    reason: Annotated[str, typer.Option(help="Reason, recorded in the audit log with your name.")],
    key: Key = "",
    as_json: Json = False,
    fleet: Fleet = "",
    token_file: TokenFile = None,
    authority: Authority = None,
) -> None:
    """Reject a proposal; it can no longer be applied."""
    from astraflow.cli.fleet.tables import decision_line, show
    from astraflow.cli.maintainer import approvals
    from astraflow.contract.fleet.plans import PlanId

    async def request(plane: "FleetPlaneClient") -> None:
        decision = await approvals.reject(plane, PlanId(plan), key=key, reason=reason)
        show(decision, decision_line, as_json=as_json)

    _call(request, fleet, token_file, authority)


def _planes(dataflow: str, fleet: str, token_file: Path | None, authority: Path | None) -> "PlaneEndpoints":
    from astraflow.cli.run_endpoints import find_planes

    return find_planes(dataflow, fleet, read_token(token_file), authority)


def _call(
    request: "Callable[[FleetPlaneClient], Awaitable[T]]", fleet: str, token_file: Path | None, authority: Path | None
) -> T:
    import asyncio

    from astraflow.client.fleet_plane import connect_fleet

    planes = _planes("", fleet, token_file, authority)

    async def connected() -> T:
        async with connect_fleet(planes.fleet, planes.token, authority=planes.authority) as plane:
            return await request(plane)

    return asyncio.run(connected())
