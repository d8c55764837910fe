"""`astraflow maintainer`: runs, inspects, controls and evaluates the maintainer of a run."""

import getpass
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from astraflow.cli.option_groups import with_groups
from astraflow.cli.options import Advertise, Authority, Directory, Json, TlsCertificate, TlsKey, TokenFile, read_token
from astraflow.contract.errors import InvalidInput
from astraflow.contract.records import render_summary

if TYPE_CHECKING:
    from astraflow.cli.run_endpoints import PlaneEndpoints
    from astraflow.client.fleet_plane import FleetPlaneClient

T = TypeVar("T")

maintainer = typer.Typer(
    name="maintainer", help="Maintain the pools of a run with an LLM (docs/how-to/maintainer.md).", no_args_is_help=True
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetServiceGroup:
    """Options of commands that call the fleet service."""

    fleet: Fleet = ""
    token_file: TokenFile = None
    authority: Authority = None

    def planes(self, dataflow: str = "") -> "PlaneEndpoints":
        """Returns the services of the run. Raises: InvalidInput when they are unknown."""
        from astraflow.cli.run_endpoints import find_planes

        return find_planes(dataflow, self.fleet, read_token(self.token_file), self.authority)

    def call(self, request: "Callable[[FleetPlaneClient], Awaitable[T]]") -> T:
        """Makes one call. Raises: the errors of the client."""
        from astraflow.client.fleet_plane import FleetPlaneClient

        return self.planes().fleet_endpoint.call(FleetPlaneClient, request)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunServicesGroup(FleetServiceGroup):
    """Options of commands that call dataflow and the fleet service."""

    dataflow: Dataflow = ""

    def both(self) -> "PlaneEndpoints":
        """Returns the services of the run. Raises: InvalidInput when they are unknown."""
        return self.planes(self.dataflow)


@maintainer.command()
@with_groups
def run(service: RunServicesGroup, config: Config = None, directory: Directory = Path("maintainer-state")) -> None:
    """Run the maintainer until it is stopped."""
    from astraflow.cli.services.control_processes import run_maintainer

    run_maintainer("run", service.both(), directory=directory, options={"config": config})


@maintainer.command()
@with_groups
def once(service: RunServicesGroup, config: Config = None, directory: Directory = Path("maintainer-state")) -> None:
    """Wake the maintainer once, without a signal, and show its status."""
    from astraflow.cli.services.control_processes import run_maintainer

    run_maintainer("once", service.both(), directory=directory, options={"config": config})


@maintainer.command()
@with_groups
def prompt(
    service: RunServicesGroup,
    config: Config = None,
    is_offline: Annotated[
        bool, typer.Option("--offline", help="Without a run: only the system prompt and the tools.")
    ] = False,
) -> None:
    """Show the exact prompt for the model. Makes no call to a model."""
    from astraflow.cli.services.control_processes import run_maintainer

    run_maintainer("prompt", None if is_offline else service.both(), options={"config": config})


@maintainer.command()
def replay(file: Annotated[Path, typer.Argument(help="Path of a transcript.jsonl.")]) -> None:
    """Check every plan of a transcript with the current guard; show differing verdicts and exit with code 1."""
    from astraflow.cli.services.control_processes import run_maintainer

    run_maintainer("replay", None, str(file))


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
    case: Annotated[list[str], typer.Option(help="Name of a case; default: all 31.")] = [],  # noqa: B006 (typer copies it)
    seeds: Annotated[int | None, typer.Option(help="Number of held-out seeds; default: all.")] = None,
    is_tuning: Annotated[
        bool, typer.Option("--tuning", help="Use the tuning seeds instead of the held-out seeds.")
    ] = False,
    fuzz_cases: Annotated[
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
    from astraflow.cli.services.control_processes import run_maintainer

    options = {
        "config": config,
        "model": model,
        "kind": kind,
        "base-url": base_url,
        "prices": prices,
        "output": output,
        "seeds": seeds,
        "fuzz_cases": fuzz_cases,
        "usd-max": usd_max,
        "minutes-max": minutes_max,
        "case": case,
        "simulated": is_simulated,
        "tuning": is_tuning,
    }
    run_maintainer("eval", options=options)


@maintainer.command(name="rehearse")
def evaluate_briefly(
    config: Annotated[Path | None, typer.Argument(help="TOML file with a [model]; default: --model.")] = None,
    model: Annotated[str, typer.Option(help="Name of a model behind the Messages API, instead of a file.")] = "",
    kind: Annotated[str, typer.Option(help="API of --model: messages_api or chat_completions.")] = "messages_api",
    base_url: Annotated[str, typer.Option(help="Base URL of the service of --model.")] = "",
    prices: Annotated[
        str, typer.Option(metavar="IN,OUT", help="Prices of --model: US dollars per million tokens.")
    ] = "",
    usd_max: Annotated[float, typer.Option(min=0.01, help="US dollars that it spends at most.")] = 1.0,
    output: Annotated[Path, typer.Option(help="JSON file; Markdown tables are written next to it.")] = Path(
        "rehearsal.json"
    ),
) -> None:
    """Try a model with your key on seven short cases of the fleet and of learning, and print scores and cost."""
    from astraflow.cli.services.control_processes import run_maintainer

    if config is None and not model:
        raise InvalidInput(
            "cannot rehearse: no model is named; give a file with a [model], or --model and --prices",
            code="cli.missing_model",
        )
    options = {"config": config, "model": model, "kind": kind, "base-url": base_url, "prices": prices}
    run_maintainer("rehearse", options=options | {"usd-max": usd_max, "output": output})


@maintainer.command()
@with_groups
def status(service: FleetServiceGroup, as_json: Json = False) -> None:
    """Show the status of the maintainer and its waiting proposals."""
    from astraflow.cli.maintainer.settings import maintainer_text
    from astraflow.cli.output import show

    async def request(plane: "FleetPlaneClient") -> None:
        maintainer, proposals = await plane.maintainer(), await plane.proposals()
        content = {"maintainer": maintainer, "proposals": proposals}
        show(content, lambda _: maintainer_text(maintainer, proposals), as_json=as_json)

    service.call(request)


@maintainer.command()
@with_groups
def mode(
    service: FleetServiceGroup,
    mode: Annotated[str, typer.Argument(help="off, shadow, propose or auto.")],
    reason: Annotated[str, typer.Option(help="Reason, recorded in the audit log with your name.")] = "by hand",
) -> None:
    """Set the mode of the maintainer."""
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
        typer.echo(render_summary(decision))

    service.call(request)


@maintainer.command()
@with_groups
def wake(
    service: FleetServiceGroup,
    reason: Annotated[str, typer.Option(help="Reason, recorded in the audit log with your name.")] = "by hand",
) -> None:
    """Let the running maintainer wake once, without a signal and within its budgets."""
    from astraflow.contract.fleet.plans import Actor, Role

    actor = Actor(name=getpass.getuser(), role=Role.OPERATOR)

    async def request(plane: "FleetPlaneClient") -> None:
        key = f"cli:{secrets.token_hex(8)}"
        typer.echo(render_summary(await plane.wake_maintainer(actor=actor, key=key, reason=reason)))

    service.call(request)


@maintainer.command()
@with_groups
def proposals(
    service: FleetServiceGroup,
    is_all: Annotated[bool, typer.Option("--all", help="Include decided proposals: the latest hundred.")] = False,
    as_json: Json = False,
) -> None:
    """List the proposals that wait for approval: effect, findings of the guard and expiry."""
    from astraflow.cli.maintainer.approvals import proposal_list
    from astraflow.cli.output import show

    async def request(plane: "FleetPlaneClient") -> None:
        show(await plane.proposals(only_waiting=not is_all), proposal_list, as_json=as_json)

    service.call(request)


@maintainer.command()
@with_groups
def approve(
    service: FleetServiceGroup,
    plan: Plan,
    reason: Annotated[str, typer.Option(help="Reason, recorded in the audit log with your name.")] = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Approve a proposal and apply it, if the guard still allows it."""
    from astraflow.cli.fleet.tables import applied_line
    from astraflow.cli.maintainer import approvals
    from astraflow.cli.output import show
    from astraflow.contract.fleet.plans import PlanId

    async def request(plane: "FleetPlaneClient") -> None:
        applied = await approvals.approve(plane, PlanId(plan), key=key, reason=reason)
        show(applied, applied_line, as_json=as_json)

    service.call(request)


@maintainer.command()
@with_groups
def reject(
    service: FleetServiceGroup,
    plan: Plan,
    reason: Annotated[str, typer.Option(help="Reason, recorded in the audit log with your name.")],
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Reject a proposal; it can no longer be applied."""
    from astraflow.cli.fleet.tables import decision_line
    from astraflow.cli.maintainer import approvals
    from astraflow.cli.output import show
    from astraflow.contract.fleet.plans import PlanId

    async def request(plane: "FleetPlaneClient") -> None:
        decision = await approvals.reject(plane, PlanId(plan), key=key, reason=reason)
        show(decision, decision_line, as_json=as_json)

    service.call(request)


DEFAULT_HTTP = "127.0.0.1:4750"


@with_groups
def mcp(
    service: RunServicesGroup,
    is_http: Annotated[bool, typer.Option("--http", help="Serve HTTP with a token instead of stdio.")] = False,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address to listen on, with --http.")] = DEFAULT_HTTP,
    web: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Serve the tools for the runs of this page instead, with the token in ASTRAFLOW_WEB_TOKEN.",
        ),
    ] = "",
    is_read_only: Annotated[bool, typer.Option("--read-only", help="Only tools that read.")] = False,
    is_non_destructive: Annotated[
        bool, typer.Option("--no-destructive", help="Refuse plans that remove nodes.")
    ] = False,
    shows_names: Annotated[
        bool, typer.Option("--show-names", help="Show names of pools, types and regions instead of tokens.")
    ] = False,
    shows_texts: Annotated[
        bool,
        typer.Option("--show-texts", help="With --web: show prompts, answers, logs, notes and names of runs."),
    ] = False,
    name: Annotated[str, typer.Option(help="Name of the agent in the audit log.")] = "mcp",
    directory: Annotated[
        Path | None,
        typer.Option(help="Folder for transcripts and the token; default: the folder of the run on this machine."),
    ] = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    behind_proxy: Annotated[
        str, typer.Option(metavar="URL", help="Public https:// address of a reverse proxy that terminates TLS.")
    ] = "",
    advertise: Advertise = [],  # noqa: B006 (typer copies it)
    shows_settings: Annotated[
        bool, typer.Option("--settings", help="Print a settings file for Claude Code (.claude/settings.json) and exit.")
    ] = False,
    shows_command: Annotated[
        bool,
        typer.Option(
            "--command",
            help="Print a command file for Claude Code (.claude/commands/astraflow-oncall.md) and exit.",
        ),
    ] = False,
) -> None:
    """Serve the tools for the fleet or for runs to an agent: claude mcp add astraflow -- astraflow mcp."""
    from astraflow.cli.services.control_processes import run_maintainer

    if shows_settings and shows_command:
        raise InvalidInput(
            "cannot print two files: --settings and --command each print one; give only one of them",
            code="cli.conflicting_options",
        )
    if shows_settings or shows_command:
        run_maintainer("claude", None, "settings" if shows_settings else "command")
    planes = None if web else service.both()
    folder = directory or (planes.maintainer_directory if planes is not None else Path("maintainer-state"))
    options = {
        "web": web,
        "name": name,
        "http": listen if is_http else None,
        "read-only": is_read_only,
        "no-destructive": is_non_destructive,
        "show-names": shows_names,
        "show-texts": shows_texts,
        "tls-certificate": tls_certificate,
        "tls-key": tls_key,
        "behind-proxy": behind_proxy,
        "advertise": advertise,
    }
    run_maintainer("mcp", planes, directory=folder, options=options)
