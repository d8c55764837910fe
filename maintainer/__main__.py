"""`python -m maintainer`: runs the maintainer, wakes it once, prints the prompt, replays a transcript, serves MCP."""

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
from astraflow.runtime.config.toml import read_values
from astraflow.runtime.imports import needs_extra
from astraflow.runtime.service import EXIT_FAILED, exit_code, print_error, run_process
from maintainer.agent.config import MaintainerConfig
from maintainer.agent.prompt import PROMPT_HASH, SPECS, SYSTEM, TOOLS_HASH
from maintainer.agent.service import open_maintainer, serve
from maintainer.agent.transcript.replay import replay_transcript
from maintainer.evals.cases import REHEARSAL, REHEARSAL_SEEDS
from maintainer.mcp.oncall import command, settings

TOKEN = "ASTRAFLOW_TOKEN"  # noqa: S105 (the variable's name, not a secret)
WEB_TOKEN = "ASTRAFLOW_WEB_TOKEN"  # noqa: S105 (as above)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the chosen command; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        match options.command:
            case "replay":
                return _replay(options.file)
            case "prompt":
                return _prompt(options)
            case "once":
                return _once(options)
            case "mcp":
                return _mcp(options)
            case "claude":
                print({"settings": settings, "command": command}[options.what](), end="")  # noqa: T201 (the command's output)
                return 0
            case "eval" | "rehearse":
                return _evaluate(options)
            case _:
                return _run(options)
    except AstraFlowError as problem:
        print_error(problem)
        return exit_code(problem)


def read_config(path: Path | None) -> MaintainerConfig:
    """Reads the configuration from a TOML file or the JSON that a run wrote; defaults if None. Raises: InvalidInput."""
    if path is None:
        return MaintainerConfig()
    return MaintainerConfig.parse(read_values(path), where="")


def _run(options: argparse.Namespace) -> int:
    logs.configure()
    logs.bind(role="maintainer")
    config, token = read_config(options.config), _token()

    async def run(stop: asyncio.Event) -> None:
        await serve(
            config,
            dataflow=options.dataflow,
            fleet=options.fleet,
            token=token,
            authority=options.authority,
            directory=options.directory,
            stop=stop,
            on_ready=lambda model: print(f"ready {model}", flush=True),  # noqa: T201 (the parent process waits for it)
        )

    return run_process(run)


def _once(options: argparse.Namespace) -> int:
    """Runs one wake regardless of signals; prints the status after it."""
    logs.configure(level="WARNING")
    config, token = read_config(options.config), _token()

    async def run(stop: asyncio.Event) -> None:
        async with open_maintainer(
            config,
            dataflow=options.dataflow,
            fleet=options.fleet,
            token=token,
            authority=options.authority,
            directory=options.directory,
        ) as maintainer:
            status = await maintainer.run_one_wake()
        print(json.dumps(asdict(status), indent=2, default=lambda choice: choice.value))  # noqa: T201 (the command's output)

    return run_process(run)


def _prompt(options: argparse.Namespace) -> int:
    """Prints everything that a model would be sent now."""
    prompt = {
        "prompt_hash": PROMPT_HASH,
        "tools_hash": TOOLS_HASH,
        "system": SYSTEM,
        "tools": [asdict(spec) for spec in SPECS],
    }
    if not options.dataflow or not options.fleet:
        print(json.dumps(prompt, indent=2))  # noqa: T201 (the command's output)
        return 0
    logs.configure(level="WARNING")
    config, token = read_config(options.config), _token()

    async def run(stop: asyncio.Event) -> None:
        with TemporaryDirectory() as directory:  # the running maintainer holds the lock of its transcript
            await show(Path(directory))

    async def show(directory: Path) -> None:
        async with open_maintainer(
            config.model_copy(update={"model": {"kind": "scripted"}}),  # no model is called
            dataflow=options.dataflow,
            fleet=options.fleet,
            token=token,
            authority=options.authority,
            directory=directory,
        ) as maintainer:
            print(json.dumps({**prompt, "first_message": await maintainer.first_message()}, indent=2))  # noqa: T201

    return run_process(run)


def _replay(file: Path) -> int:
    replay = replay_transcript(file)
    if replay.torn_bytes:
        print(f"the last line is incomplete ({replay.torn_bytes} bytes): the process was stopped while it wrote")  # noqa: T201
    for difference in replay.differences:
        print(difference.text())  # noqa: T201
    same = replay.verdicts - len(replay.differences)
    print(f"{replay.entries} entries, hash chain valid; {same} of {replay.verdicts} verdicts unchanged")  # noqa: T201
    return EXIT_FAILED if replay.differences else 0


def _mcp(options: argparse.Namespace) -> int:
    """Serves MCP. Over stdio nothing is printed: standard output carries the protocol."""
    logs.configure(level="WARNING")
    logs.bind(role="mcp")
    with needs_extra("mcp", to="serve MCP"):
        from maintainer.mcp.http import McpEndpoint, load_or_create_token
        from maintainer.mcp.runs import open_runs_server
        from maintainer.mcp.service import open_mcp_server, serve_mcp
        from maintainer.mcp.sessions import ServerModes
    if not options.web and not (options.dataflow and options.fleet):
        raise InvalidInput(
            "cannot serve MCP: no services are named; give --dataflow and --fleet, or --web for the runs of a page",
            code="mcp.no_services",
        )
    endpoint = None
    if options.http:
        secret, token_source = load_or_create_token(options.directory)
        host, _, port = options.http.rpartition(":")
        if not host or not port.isdigit():
            raise InvalidInput(
                f"cannot serve MCP over HTTP: {options.http[:80]!r} is not an address; use HOST:PORT",
                code="mcp.invalid_address",
            )
        endpoint = McpEndpoint(
            token=secret,
            host=host.strip("[]"),
            port=int(port),
            certificate=options.tls_certificate,
            key=options.tls_key,
            behind_proxy=options.behind_proxy,
            names=options.advertise,
        )
        print(f"token in {token_source}", file=sys.stderr)  # noqa: T201 (for the person who sets up a client)

    opened = (
        open_runs_server(
            options.web,
            _token(WEB_TOKEN),
            directory=options.directory,
            is_read_only=options.read_only,
            shows_texts=options.show_texts,
        )
        if options.web
        else open_mcp_server(
            dataflow=options.dataflow,
            fleet=options.fleet,
            token=_token(),
            authority=options.authority,
            name=options.name,
            directory=options.directory,
            modes=ServerModes(is_read_only=options.read_only, is_non_destructive=options.no_destructive),
            shows_names=options.show_names,
        )
    )

    async def run(stop: asyncio.Event) -> None:
        async with opened as server:
            await serve_mcp(
                server,
                endpoint=endpoint,
                stop=stop,
                on_ready=lambda url: print(f"ready {url}", flush=True),  # noqa: T201 (the parent process waits for it)
            )

    return run_process(run)


def _evaluate(options: argparse.Namespace) -> int:
    """Evaluates the model of the configuration; the scripted characters without one."""
    from maintainer.evals.command import evaluate

    logs.configure(level="CRITICAL")
    return evaluate(options, read_config(options.config).model if options.config else None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m maintainer", description="Runs the maintainer of a run's pools.")
    commands = parser.add_subparsers(dest="command", required=True)
    help_texts = {
        "run": "run until stopped",
        "once": "run one wake",
        "prompt": "print the prompt of a model",
        "mcp": "serve the tools to other agents over MCP",
    }
    for name, help_text in help_texts.items():
        command = commands.add_parser(name, help=help_text)
        is_needed = name not in ("prompt", "mcp")
        if name != "mcp":
            command.add_argument(
                "--config", type=Path, help="TOML file (docs/how-to/maintainer.md); default: the scripted maintainer"
            )
        command.add_argument("--dataflow", required=is_needed, metavar="HOST:PORT", help="the run's dataflow service")
        command.add_argument("--fleet", required=is_needed, metavar="HOST:PORT", help="the run's fleet service")
        command.add_argument(
            "--directory", type=Path, default=Path("maintainer-state"), help="directory for transcripts"
        )
        command.add_argument("--authority", type=Path, metavar="DIR", help="the run's certificate authority")
    command.add_argument(
        "--http", default="", metavar="HOST:PORT", help="serve over HTTP at this address; default: stdio"
    )
    command.add_argument("--web", default="", metavar="URL", help="offer the tools for the runs of this page instead")
    command.add_argument("--read-only", action="store_true", help="offer only tools that read")
    command.add_argument("--no-destructive", action="store_true", help="refuse plans that remove nodes")
    command.add_argument(
        "--show-names", action="store_true", help="show pools, types and regions by name instead of tokens"
    )
    command.add_argument(
        "--show-texts", action="store_true", help="with --web: show prompts, answers, logs, notes and names of runs"
    )
    command.add_argument("--name", default="mcp", help="name of the agent in the journal")
    command.add_argument("--tls-certificate", type=Path, help="serve HTTPS with this certificate (PEM)")
    command.add_argument("--tls-key", type=Path, help="the certificate's key (PEM)")
    command.add_argument(
        "--behind-proxy", default="", metavar="URL", help="public https:// URL of a proxy in front, also with a path"
    )
    command.add_argument(
        "--advertise", action="append", default=[], metavar="NAME", help="additional host name to accept"
    )
    claude = commands.add_parser("claude", help="print a file for Claude Code")
    claude.add_argument("what", choices=("settings", "command"))
    evaluate = commands.add_parser("eval", help="score a model, or the scripted characters, against the rule")
    evaluate.add_argument("--config", type=Path, help="TOML file with a [model]; default: the scripted characters")
    _add_evaluation_arguments(evaluate)
    rehearse = commands.add_parser("rehearse", help="score a model on a few cases, within a budget")
    rehearse.add_argument("--config", type=Path, help="TOML file with a [model]")
    _add_evaluation_arguments(rehearse)
    rehearse.set_defaults(case=list(REHEARSAL), seeds=REHEARSAL_SEEDS, fuzz_cases=0, usd_max=1.0)
    replay = commands.add_parser("replay", help="judge the plans of a transcript with today's guard")
    replay.add_argument("file", type=Path)
    return parser


def _add_evaluation_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="", help="name of a model of the Messages API, instead of a configuration")
    parser.add_argument("--kind", default="messages_api", help="kind of --model: messages_api or chat_completions")
    parser.add_argument("--base-url", default="", help="alternative URL of the service of --model")
    parser.add_argument(
        "--prices", default="", metavar="IN,OUT", help="prices of --model, US dollars per million tokens"
    )
    parser.add_argument("--simulated", action="store_true", help="mark the results as simulated")
    parser.add_argument("--case", action="append", default=[], help="case to run, repeatable; default: all")
    parser.add_argument("--seeds", type=int, help="number of held-out seeds; default: all")
    parser.add_argument("--tuning", action="store_true", help="use the tuning seeds instead")
    parser.add_argument("--fuzz-cases", type=int, help="number of fuzz cases with a random fuzzing model; default: 200")
    parser.add_argument("--usd-max", type=float, help="budget per model, US dollars; results so far are written")
    parser.add_argument("--minutes-max", type=float, help="time budget per model, minutes")
    parser.add_argument(
        "--output", type=Path, default=Path("leaderboard.json"), help="JSON file; a Markdown file is written beside it"
    )


def _token(variable: str = TOKEN) -> str:
    token = os.environ.get(variable, "")
    if not token:
        raise InvalidInput(
            f"cannot authenticate: the environment variable {variable} is empty; set it to the token of the run, or of "
            "the page",
            code="maintainer.token_missing",
        )
    return token


if __name__ == "__main__":
    sys.exit(main())
