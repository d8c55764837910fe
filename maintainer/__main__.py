"""`python -m maintainer`: run it, wake it once, show what a model is told, judge a transcript again, or speak MCP."""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.runtime import logs
from astraflow.runtime.service import EXIT_FAILED, exit_code, print_error, run_process
from astraflow.runtime.toml import read_toml
from maintainer.config import MaintainerConfig
from maintainer.evals.arguments import add_arguments
from maintainer.oncall import command, settings
from maintainer.prompt import PROMPT_HASH, SPECS, SYSTEM, TOOLS_HASH
from maintainer.replay import replayed
from maintainer.service import built, serve

TOKEN = "ASTRAFLOW_TOKEN"  # noqa: S105 (the variable's name, not a secret)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what was asked; returns the exit code."""
    chosen = _parser().parse_args(arguments)
    try:
        match chosen.command:
            case "replay":
                return _replay(chosen.file)
            case "prompt":
                return _prompt(chosen)
            case "once":
                return _once(chosen)
            case "mcp":
                return _mcp(chosen)
            case "claude":
                print({"settings": settings, "command": command}[chosen.what](), end="")  # noqa: T201 (its output)
                return 0
            case "eval":
                return _evaluate(chosen)
            case _:
                return _run(chosen)
    except AstraFlowError as problem:
        print_error(problem)
        return exit_code(problem)


def read_config(path: Path | None) -> MaintainerConfig:
    """The configuration in a TOML file, or in the JSON that a run wrote; defaults without. Raises: InvalidInput."""
    if path is None:
        return MaintainerConfig()
    if path.suffix != ".json":
        return MaintainerConfig.parse(read_toml(path), where="")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise InvalidInput(f"{path} cannot be read: {problem}") from None
    if not isinstance(found, dict):
        raise InvalidInput(f"{path} holds no table")
    return MaintainerConfig.parse(found, where="")


def _run(chosen: argparse.Namespace) -> int:
    logs.configure()
    logs.bind(role="maintainer")
    config, token = read_config(chosen.config), _token()

    async def run(stop: asyncio.Event) -> None:
        await serve(
            config,
            dataflow=chosen.dataflow,
            fleet=chosen.fleet,
            token=token,
            authority=chosen.authority,
            directory=chosen.directory,
            stop=stop,
            on_ready=lambda what: print(f"ready {what}", flush=True),  # noqa: T201 (what its parent waits for)
        )

    return run_process(run)


def _once(chosen: argparse.Namespace) -> int:
    """One wake, whatever is or is not the matter; prints how it is then."""
    logs.configure(level="WARNING")
    config, token = read_config(chosen.config), _token()

    async def run(stop: asyncio.Event) -> None:
        async with built(
            config,
            dataflow=chosen.dataflow,
            fleet=chosen.fleet,
            token=token,
            authority=chosen.authority,
            directory=chosen.directory,
        ) as maintainer:
            status = await maintainer.once()
        print(json.dumps(asdict(status), indent=2, default=lambda choice: choice.value))  # noqa: T201 (its output)

    return run_process(run)


def _prompt(chosen: argparse.Namespace) -> int:
    """All that a model would be told now."""
    told = {
        "prompt_hash": PROMPT_HASH,
        "tools_hash": TOOLS_HASH,
        "system": SYSTEM,
        "tools": [asdict(spec) for spec in SPECS],
    }
    if not chosen.dataflow or not chosen.fleet:
        print(json.dumps(told, indent=2))  # noqa: T201 (its output)
        return 0
    logs.configure(level="WARNING")
    config, token = read_config(chosen.config), _token()

    async def run(stop: asyncio.Event) -> None:
        with TemporaryDirectory() as directory:  # the transcript is the running one's
            await show(Path(directory))

    async def show(directory: Path) -> None:
        async with built(
            config.model_copy(update={"model": {"kind": "scripted"}}),  # nobody is asked
            dataflow=chosen.dataflow,
            fleet=chosen.fleet,
            token=token,
            authority=chosen.authority,
            directory=directory,
        ) as maintainer:
            print(json.dumps({**told, "first_message": await maintainer.first_message()}, indent=2))  # noqa: T201

    return run_process(run)


def _replay(file: Path) -> int:
    found = replayed(file)
    if found.torn_bytes:
        print(f"the last line is torn ({found.torn_bytes} bytes): the process was stopped while it wrote")  # noqa: T201
    for difference in found.differences:
        print(difference.text())  # noqa: T201
    same = found.verdicts - len(found.differences)
    print(f"{found.entries} entries, the chain holds; {same} of {found.verdicts} verdicts are the same")  # noqa: T201
    return EXIT_FAILED if found.differences else 0


def _mcp(chosen: argparse.Namespace) -> int:
    """Over stdio nothing is printed: standard output is the protocol's."""
    logs.configure(level="WARNING")
    logs.bind(role="mcp")
    try:
        from maintainer.mcp_http import McpDoor, kept_token
        from maintainer.mcp_service import built_mcp, serve_mcp
        from maintainer.mcp_sessions import Modes
    except ImportError as problem:
        raise InvalidInput(f"MCP needs what is not installed ({problem}): pip install 'astraflow[mcp]'") from None
    token, door = _token(), None
    if chosen.http:
        secret, where = kept_token(chosen.directory)
        host, _, port = chosen.http.rpartition(":")
        if not host or not port.isdigit():
            raise InvalidInput(f"{chosen.http[:80]!r} is no HOST:PORT to listen on")
        door = McpDoor(
            token=secret,
            host=host.strip("[]"),
            port=int(port),
            certificate=chosen.tls_certificate,
            key=chosen.tls_key,
            behind_proxy=chosen.behind_proxy,
            names=chosen.advertise,
        )
        print(f"token in {where}", file=sys.stderr)  # noqa: T201 (for the person who sets up a client)

    async def run(stop: asyncio.Event) -> None:
        async with built_mcp(
            dataflow=chosen.dataflow,
            fleet=chosen.fleet,
            token=token,
            authority=chosen.authority,
            name=chosen.name,
            directory=chosen.directory,
            modes=Modes(is_read_only=chosen.read_only, is_sparing=chosen.no_destructive),
            shows_names=chosen.show_names,
        ) as server:
            await serve_mcp(
                server,
                door=door,
                stop=stop,
                on_ready=lambda url: print(f"ready {url}", flush=True),  # noqa: T201 (what its parent waits for)
            )

    return run_process(run)


def _evaluate(chosen: argparse.Namespace) -> int:
    """The scripted characters without a configuration or a model; one model with it."""
    from maintainer.evals.command import evaluate

    logs.configure(level="CRITICAL")
    return evaluate(chosen, read_config(chosen.config).model if chosen.config else None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m maintainer", description="Looks after the pools of a run.")
    commands = parser.add_subparsers(dest="command", required=True)
    several = {
        "run": "until it is told to stop",
        "once": "one wake",
        "prompt": "what a model is told",
        "mcp": "its tools for other agents",
    }
    for name, told in several.items():
        command = commands.add_parser(name, help=told)
        is_needed = name != "prompt"
        if name != "mcp":
            command.add_argument("--config", type=Path, help="TOML file (docs/maintainer.md); the scripted one without")
        command.add_argument("--dataflow", required=is_needed, metavar="HOST:PORT", help="the run's dataflow service")
        command.add_argument("--fleet", required=is_needed, metavar="HOST:PORT", help="the run's fleet service")
        command.add_argument("--directory", type=Path, default=Path("maintainer-state"), help="for transcripts")
        command.add_argument("--authority", type=Path, metavar="DIR", help="the run's certificate authority")
    command.add_argument("--http", default="", metavar="HOST:PORT", help="over HTTP; over stdio by default")
    command.add_argument("--read-only", action="store_true", help="no tool that writes is there")
    command.add_argument("--no-destructive", action="store_true", help="nothing takes a node away")
    command.add_argument("--show-names", action="store_true", help="pools, types and regions by their names")
    command.add_argument("--name", default="mcp", help="of the agent, in the journal")
    command.add_argument("--tls-certificate", type=Path, help="serve HTTPS with this certificate (PEM)")
    command.add_argument("--tls-key", type=Path, help="the certificate's key (PEM)")
    command.add_argument(
        "--behind-proxy", default="", metavar="URL", help="public https:// address of a proxy in front"
    )
    command.add_argument("--advertise", action="append", default=[], metavar="NAME", help="another name it is called")
    claude = commands.add_parser("claude", help="print a file for Claude Code")
    claude.add_argument("what", choices=("settings", "command"))
    evaluate = commands.add_parser("eval", help="score a model, or the scripted characters, against the rule")
    evaluate.add_argument("--config", type=Path, help="TOML file with a [model]; the scripted characters without")
    add_arguments(evaluate)
    replay = commands.add_parser("replay", help="judge the plans of a transcript again")
    replay.add_argument("file", type=Path)
    return parser


def _token() -> str:
    token = os.environ.get(TOKEN, "")
    if not token:
        raise InvalidInput(f"the environment variable {TOKEN} is empty: set it to the token of the run")
    return token


if __name__ == "__main__":
    sys.exit(main())
