"""`astraflow check`: checks of recipes, and of parts that you provide, such as an engine."""

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from astraflow.cli.checks.plugins import environment, print_results, reward, tool, workflow
from astraflow.cli.checks.recipe import recipe
from astraflow.cli.options import Json, check_recipe
from astraflow.contract.errors import InvalidInput
from astraflow.contract.plugins import CheckResult, broken_promises

if TYPE_CHECKING:
    from astraflow.rewards.calibration import CalibrationReport, LabelledExample


check = typer.Typer(name="check", help="Check recipes, and parts that you provide.", no_args_is_help=True)
check.command()(reward)
check.command()(environment)
check.command()(tool)
check.command()(workflow)
check.command()(recipe)


@check.callback()
def checks() -> None:
    """Check recipes, and parts that you provide."""


@check.command()
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="HTML file of `astraflow view RUN --export FILE`.")],
) -> None:
    """Check that the export of a run is as it was written; exit with code 1 if it was changed."""
    from astraflow.cli.checks.export import checked_hash

    typer.echo(f"unchanged: SHA-256 {checked_hash(file)}")


@check.command()
def engine(
    target: Annotated[
        str, typer.Argument(metavar="KIND|ADDRESS", help="Kind of an engine, or http://HOST:PORT of a running server.")
    ],
    options: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="Option of the engine; may be repeated.")
    ] = [],  # noqa: B006 (typer copies it)
    model: Annotated[
        str,
        typer.Option(metavar="JSON", help="""Model of a plugin, such as '{"kind": "tiny"}'; a small one if empty."""),
    ] = "",
    name: Annotated[str, typer.Option(help="Name of the model on a running server.")] = "",
    tokens: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Tokens of a request; more for a fast engine, fewer for a slow one. Default: 1500 for an engine that "
            "starts a server, otherwise 400.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check an engine against the promises of the interface; exit with code 1 if it breaks one.

    A running server is used through the engine openai_tokens: `--name` is its model, and `--set
    key_variable=ASTRAFLOW_ENGINE_KEY` names the variable with its key.
    """
    spec = _engine_spec(target, options, name)
    results = asyncio.run(_run(spec, _parse_model(model), is_address=_is_address(target), tokens=tokens))
    print_results(results, part="engine", as_json=as_json)


@check.command()
def trainer(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Free loopback address to listen on.")],
    token: Annotated[str, typer.Option(envvar="ASTRAFLOW_TOKEN", help="Run token that the trainer presents.")],
    policy: Annotated[str, typer.Option(help="Policy that the trainer trains.")] = "policy",
    vocabulary: Annotated[int, typer.Option(min=2, help="Token ids of the batches are below this.")] = 32,
    limit_s: Annotated[float, typer.Option(min=1, help="Time for the whole check, in seconds.")] = 120.0,
    as_json: Json = False,
) -> None:
    """Check a trainer against the contract of a stream of batches; exit with code 1 if it breaks a promise.

    The command serves a short scripted run, with a restart and lost acknowledgements. Start the trainer with this
    address as that of the dataflow service.
    """
    from astraflow.conformance.trainers import TrainerCheck, check_trainer
    from astraflow.contract.ids import PolicyId

    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidInput(
            f"cannot listen on {address!r}: it is not HOST:PORT; give an address such as 127.0.0.1:7000",
            code="check.invalid_address",
        )
    subject = TrainerCheck(
        policy=PolicyId(policy), token=token, host=host, port=int(port), vocabulary=vocabulary, limit_s=limit_s
    )
    results = asyncio.run(check_trainer(subject, on_ready=_print_address))
    print_results(results, part="trainer", as_json=as_json)


def _print_address(address: str) -> None:
    typer.echo(f"start the trainer with the dataflow address {address}", err=True)


async def _run(
    spec: dict[str, Any], model: dict[str, Any] | None, *, is_address: bool, tokens: int | None
) -> "list[CheckResult]":
    import numpy as np

    from astraflow.conformance.engine_subjects import TOKENS, plugin_subject, server_subject
    from astraflow.conformance.engines import run_checks

    if is_address:
        prompt = np.arange(2, 18, dtype=np.int32)
        subject = await server_subject(spec, prompt=prompt, max_new_tokens=tokens or TOKENS)
    else:
        subject = plugin_subject(spec, model)
        if tokens is not None:
            subject.sampling = replace(subject.sampling, max_new_tokens=tokens)
    return [result async for result in run_checks(subject)]


def _engine_spec(target: str, options: list[str], name: str) -> dict[str, Any]:
    from astraflow.runtime.config.toml import parse_override

    spec: dict[str, Any] = {"kind": target}
    if _is_address(target):
        if not name:
            raise InvalidInput(
                f"cannot check the server at {target!r}: the name of its model is missing; give --name, one of its "
                "/v1/models",
                code="check.name_required",
            )
        spec = {"kind": "openai_tokens", "base_url": target, "model": name, "refresh_timeout_s": 0.0}
    for option in options:
        spec.update(parse_override(option))
    return spec


def _parse_model(text: str) -> dict[str, Any] | None:
    if not text:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InvalidInput(
            f"""cannot parse --model: {text!r} is no JSON object; write '{{"kind": "tiny"}}', quoted for the shell""",
            code="check.invalid_model",
        )
    return value


def _is_address(target: str) -> bool:
    return target.startswith(("http://", "https://"))


def doctor(
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Also check how the model in this folder is trained and served; loads it in float32.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check what this machine can run and which software is missing."""
    from astraflow.cli.checks.doctor import model_results, run_checks, table
    from astraflow.cli.output import show

    results = [*run_checks(), *(model_results(model) if model is not None else [])]
    show(results, table, as_json=as_json)
    raise typer.Exit(1 if broken_promises(results) else 0)


def calibrate(
    reward: Annotated[
        str,
        typer.Argument(
            metavar="JSON|RECIPE", help="""Reward, such as '{"kind": "llm_judge", ...}', or the recipe that has it."""
        ),
    ],
    examples: Annotated[
        Path, typer.Argument(help="JSON lines with completion, label (0 to 1), and the fields of the prompt.")
    ],
    threshold: Annotated[float, typer.Option(help="Score from which an example counts as good.")] = 0.5,
    within: Annotated[
        float | None,
        typer.Option(min=0, help="Exit with code 1 if a score differs from its label by more: a regression test."),
    ] = None,
    flow: Annotated[str, typer.Option(help="Flow of the recipe with the reward; needed if it has several.")] = "",
) -> None:
    """Compare a reward, such as a judge, with labelled examples, and print the report as JSON.

    The page saves labelled trajectories as such examples (data set `regression`).
    """
    from astraflow.rewards.calibration import read_examples

    spec = _reward_of_recipe(reward, flow) if not reward.lstrip().startswith("{") else _reward_of_json(reward)
    report = asyncio.run(_report(spec, read_examples(examples), threshold=threshold, within=within))
    sys.stdout.write(json.dumps(asdict(report), indent=2) + "\n")
    if report.misses:
        raise typer.Exit(1)


def _reward_of_json(text: str) -> dict[str, Any]:
    try:
        spec: dict[str, Any] = json.loads(text)
    except ValueError as problem:
        raise InvalidInput(
            f"cannot read the reward {text!r}: {problem}; write kind and options as a JSON object",
            code="calibration.invalid_reward",
        ) from problem
    return spec


def _reward_of_recipe(name: str, flow: str) -> dict[str, Any]:
    """Returns the reward of a recipe's flow. Raises: InvalidInput for an unknown flow, and for none of several."""
    from astraflow.recipe.loading import Check, load_recipe

    flows = load_recipe(check_recipe(name), check=Check.NONE).flows
    chosen = flow or next(iter(flows))
    if chosen not in flows or (not flow and len(flows) > 1):
        raise InvalidInput(
            f"cannot choose a reward of the recipe {name!r}: flow {flow!r}; use --flow with one of {', '.join(flows)}",
            code="calibration.unknown_flow",
        )
    return dict(flows[chosen].reward)


async def _report(
    spec: dict[str, Any], examples: "list[LabelledExample]", *, threshold: float, within: float | None
) -> "CalibrationReport":
    from astraflow.rewards import rewards
    from astraflow.rewards.calibration import calibrate as calibration
    from astraflow.runtime.plugins import start_managed

    built = rewards.build(spec)
    async with AsyncExitStack() as resources:
        await start_managed((built,), resources)
        return await calibration(built, examples, threshold=threshold, within=within)
