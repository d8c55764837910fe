"""`astraflow maintainer`: the maintainer of a run, as people start, ask, steer and check it."""

import getpass
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from astraflow.cli.options import Authority, Directory, TokenFile, read_token

if TYPE_CHECKING:
    from astraflow.cli.local import Planes
    from astraflow.client.fleet_plane import FleetPlaneClient

T = TypeVar("T")

maintainer = typer.Typer(help="Look after the pools of a run with a model (docs/maintainer.md).", no_args_is_help=True)

Fleet = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Address of the fleet service; of the run on this machine by default.")
]
Dataflow = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Address of dataflow; of the run on this machine by default.")
]
Config = Annotated[
    Path | None, typer.Argument(help="TOML file about the model, its mode and budgets; a scripted one by default.")
]


Plan = Annotated[str, typer.Argument(help="Id of the plan, as `astraflow maintainer proposals` prints it.")]
Key = Annotated[
    str, typer.Option(help="Idempotency key: with that of an earlier try, what was done already is not done again.")
]
Json = Annotated[bool, typer.Option("--json", help="For scripts: one JSON value.")]


@maintainer.command()
def run(
    config: Config = None,
    dataflow: Dataflow = "",
    fleet: Fleet = "",
    directory: Directory = Path("maintainer-state"),
    token_file: TokenFile = None,
    authority: Authority = None,
) -> None:
    """Run the maintainer until it is told to stop."""
    from astraflow.cli.roles import run_maintainer

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
    """Wake it once, whatever is or is not the matter, and show how it is then."""
    from astraflow.cli.roles import run_maintainer

    run_maintainer("once", _planes(dataflow, fleet, token_file, authority), config=config, directory=directory)


@maintainer.command()
def prompt(
    config: Config = None,
    dataflow: Dataflow = "",
    fleet: Fleet = "",
    token_file: TokenFile = None,
    authority: Authority = None,
    is_offline: Annotated[
        bool, typer.Option("--offline", help="Without a run: the system text and the tools.")
    ] = False,
) -> None:
    """Show exactly what a model would be told now. Nobody is asked."""
    from astraflow.cli.roles import run_maintainer

    planes = None if is_offline else _planes(dataflow, fleet, token_file, authority)
    run_maintainer("prompt", planes, config=config)


@maintainer.command()
def replay(file: Annotated[Path, typer.Argument(help="A transcript.jsonl.")]) -> None:
    """Ask today's guard about every plan of a transcript again; code 1 and a difference where it says otherwise."""
    from astraflow.cli.roles import replay_maintainer

    replay_maintainer(file)


@maintainer.command(name="eval")
def evaluate(
    config: Annotated[
        Path | None, typer.Argument(help="TOML file with a model; the scripted characters by default.")
    ] = None,
    model: Annotated[str, typer.Option(help="Name of one behind the Messages API, in place of a file.")] = "",
    kind: Annotated[str, typer.Option(help="Of --model: messages_api or chat_completions.")] = "messages_api",
    base_url: Annotated[str, typer.Option(help="Of --model: another address of the service.")] = "",
    prices: Annotated[str, typer.Option(metavar="IN,OUT", help="Of --model: US dollars for a million tokens.")] = "",
    is_stand_in: Annotated[
        bool, typer.Option("--stand-in", help="What answers is no model: the leaderboard says so.")
    ] = False,
    case: Annotated[list[str], typer.Option(help="One case; all 24 by default.")] = [],  # noqa: B006 (typer copies it)
    seeds: Annotated[int | None, typer.Option(help="How many of the held-out seeds; all by default.")] = None,
    is_tuning: Annotated[
        bool, typer.Option("--tuning", help="The seeds that may be looked at while tuning, instead.")
    ] = False,
    encounters: Annotated[
        int | None, typer.Option(help="Short ones, with a model that calls by chance; 200 by default.")
    ] = None,
    usd_max: Annotated[
        float | None, typer.Option(help="US dollars of each model: then it ends, and what was played is written.")
    ] = None,
    minutes_max: Annotated[float | None, typer.Option(help="The same for time.")] = None,
    output: Annotated[Path, typer.Option(help="JSON; tables in Markdown are put beside it.")] = Path(
        "leaderboard.json"
    ),
) -> None:
    """Score a model against the rule, in simulated runs over the real guard. A hosted one needs its key."""
    from astraflow.cli.roles import run_maintainer

    given = {
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
    arguments = [part for name, value in given.items() if value not in (None, "") for part in (name, str(value))]
    arguments += [part for name in case for part in ("--case", name)]
    arguments += ["--stand-in"] if is_stand_in else []
    arguments += ["--tuning"] if is_tuning else []
    run_maintainer("eval", None, config=config, arguments=arguments)


@maintainer.command()
def status(fleet: Fleet = "", token_file: TokenFile = None, authority: Authority = None) -> None:
    """How the maintainer is, and what waits for a person."""
    from astraflow.cli.maintaining import show_maintainer

    async def asked(plane: "FleetPlaneClient") -> None:
        show_maintainer(await plane.maintainer(), await plane.proposals())

    _asked(asked, fleet, token_file, authority)


@maintainer.command()
def mode(
    mode: Annotated[str, typer.Argument(help="off, shadow, propose or auto.")],
    reason: Annotated[str, typer.Option(help="Why; it stands in the journal, with your name.")] = "by hand",
    fleet: Fleet = "",
    token_file: TokenFile = None,
    authority: Authority = None,
) -> None:
    """Say how far the maintainer may go."""
    from astraflow.contract.errors import InvalidInput
    from astraflow.contract.fleet import Actor, Role
    from astraflow.contract.maintenance import MaintainerMode

    known = [one.value for one in MaintainerMode]
    if mode not in known:
        raise InvalidInput(f"{mode[:40]!r} is no mode: {', '.join(known)}")
    actor = Actor(name=getpass.getuser(), role=Role.OPERATOR)

    async def asked(plane: "FleetPlaneClient") -> None:
        decision = await plane.set_maintainer_mode(
            MaintainerMode(mode), actor=actor, key=f"cli:{secrets.token_hex(8)}", reason=reason
        )
        typer.echo(decision.message)

    _asked(asked, fleet, token_file, authority)


@maintainer.command()
def proposals(
    is_all: Annotated[bool, typer.Option("--all", help="Those that were decided, too: the latest hundred.")] = False,
    as_json: Json = False,
    fleet: Fleet = "",
    token_file: TokenFile = None,
    authority: Authority = None,
) -> None:
    """Plans that wait for a person: what each would do, what the guard says, until when."""
    from astraflow.cli.approvals import proposal_list
    from astraflow.cli.fleet_tables import show

    async def asked(plane: "FleetPlaneClient") -> None:
        show(await plane.proposals(only_waiting=not is_all), proposal_list, as_json=as_json)

    _asked(asked, fleet, token_file, authority)


@maintainer.command()
def approve(
    plan: Plan,
    reason: Annotated[str, typer.Option(help="Why; the journal has a note of it, with your name.")] = "",
    key: Key = "",
    as_json: Json = False,
    fleet: Fleet = "",
    token_file: TokenFile = None,
    authority: Authority = None,
) -> None:
    """Say yes to a proposal: it is applied, if the guard still allows it."""
    from astraflow.cli import approvals
    from astraflow.cli.fleet_tables import applied_line, show
    from astraflow.contract.fleet import PlanId

    async def asked(plane: "FleetPlaneClient") -> None:
        applied = await approvals.approve(plane, PlanId(plan), key=key, reason=reason)
        show(applied, applied_line, as_json=as_json)

    _asked(asked, fleet, token_file, authority)


@maintainer.command()
def reject(
    plan: Plan,
    reason: Annotated[str, typer.Option(help="Why; it stands in the journal, with your name.")],
    key: Key = "",
    as_json: Json = False,
    fleet: Fleet = "",
    token_file: TokenFile = None,
    authority: Authority = None,
) -> None:
    """Say no to a proposal: it can be applied no more."""
    from astraflow.cli import approvals
    from astraflow.cli.fleet_tables import decision_line, show
    from astraflow.contract.fleet import PlanId

    async def asked(plane: "FleetPlaneClient") -> None:
        decision = await approvals.reject(plane, PlanId(plan), key=key, reason=reason)
        show(decision, decision_line, as_json=as_json)

    _asked(asked, fleet, token_file, authority)


def _planes(dataflow: str, fleet: str, token_file: Path | None, authority: Path | None) -> "Planes":
    from astraflow.cli.local import find_planes

    return find_planes(dataflow, fleet, read_token(token_file), authority)


def _asked(
    ask: "Callable[[FleetPlaneClient], Awaitable[T]]", fleet: str, token_file: Path | None, authority: Path | None
) -> T:
    import asyncio

    from astraflow.client.fleet_plane import connect_fleet

    planes = _planes("", fleet, token_file, authority)

    async def connected() -> T:
        async with connect_fleet(planes.fleet, planes.token, authority=planes.authority) as plane:
            return await ask(plane)

    return asyncio.run(connected())
