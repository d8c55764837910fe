"""`astraflow check reward|environment|tool|workflow`: checks plugins on prompts of a dataset, without a model."""

import asyncio
import json
import math
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from astraflow.cli.options import Json
from astraflow.contract.errors import InvalidInput
from astraflow.contract.plugins import CheckResult, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from astraflow.contract.rollouts.tasks import Prompt
    from astraflow.environments.base import Observation
    from astraflow.environments.episodes import Expert


Kind = Annotated[str, typer.Argument(metavar="KIND", help="Kind of the plugin.")]
Options = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Option of the plugin; may be repeated.")
]
Dataset = Annotated[
    str,
    typer.Option(metavar="JSON", help="""Dataset with prompts for it, such as '{"kind": "letters"}'."""),
]

_PROMPTS = 3


def reward(
    kind: Kind,
    dataset: Dataset,
    options: Options = [],  # noqa: B006 (typer copies it)
    completions: Annotated[
        list[str], typer.Option("--completion", help="Completion to score; may be repeated. Default: right and wrong.")
    ] = [],  # noqa: B006 (the same)
    as_json: Json = False,
) -> None:
    """Check a reward against the promises of the interface; exit with code 1 if it breaks one."""
    results = asyncio.run(_check_reward(_spec(kind, options), _prompts(dataset)[0], completions))
    print_results(results, part="reward", as_json=as_json)


def environment(
    kind: Kind,
    dataset: Annotated[
        str,
        typer.Option(
            metavar="JSON",
            help="""Dataset with prompts for it, such as '{"kind": "letters"}'; one of another project has its own.""",
        ),
    ] = "",
    options: Options = [],  # noqa: B006 (typer copies it)
    expert: Annotated[
        str,
        typer.Option(
            metavar="FIELD|MODULE:FUNCTION",
            help="How to win: field of the prompts with the actions, one in a line, or a function of a module given "
            "with --plugin, from the prompt and the observations so far to the next action.",
        ),
    ] = "answer",
    best_reward: Annotated[
        str,
        typer.Option(
            metavar="NUMBER|none",
            help="Total reward of an episode that the expert wins; `none` for an environment without a best reward, "
            "whose episodes need only end.",
        ),
    ] = "1",
    replies: Annotated[
        list[str],
        typer.Option(
            "--reply",
            help="For an environment of another project: what the policy replies, in order, the last one again; may be "
            "repeated.",
        ),
    ] = [],  # noqa: B006 (the same)
    as_json: Json = False,
) -> None:
    """Check an environment against the promises of the interface; exit with code 1 if it breaks one."""
    from astraflow.agents.environment_flows import KINDS

    if kind in KINDS:
        results = asyncio.run(_check_named(_spec(kind, options), replies or ["42"]))
        print_results(results, part="environment", as_json=as_json)
        return
    best = None if best_reward == "none" else _number(best_reward)
    results = asyncio.run(_check_environment(_spec(kind, options), _prompts(dataset), _expert(expert), best))
    print_results(results, part="environment", as_json=as_json)


def tool(
    kind: Kind,
    dataset: Dataset = '{"kind": "letters"}',
    options: Options = [],  # noqa: B006 (typer copies it)
    as_json: Json = False,
) -> None:
    """Check a source of tools: calls each tool with generated arguments; exit with code 1 if it breaks a promise."""
    from astraflow.conformance.tools import check_tools
    from astraflow.tools import tool_sources

    source = tool_sources.build(_spec(kind, options))
    print_results(asyncio.run(check_tools(source, _prompts(dataset)[0])), part="tool", as_json=as_json)


def workflow(
    kind: Kind,
    dataset: Dataset,
    options: Options = [],  # noqa: B006 (typer copies it)
    replies: Annotated[
        list[str],
        typer.Option("--reply", help="What every policy replies, in order, the last one again; may be repeated."),
    ] = [],  # noqa: B006 (the same)
    as_json: Json = False,
) -> None:
    """Check a workflow against the promises of the interface; exit with code 1 if it breaks one."""
    from astraflow.conformance.workflows import WorkflowCheck, check_workflow
    from astraflow.workflows.scripted.policies import in_order

    prompt = _prompts(dataset)[0]
    reply = in_order(*(replies or [_answer_of(prompt) or "42"]))
    subject = WorkflowCheck(spec=_spec(kind, options), prompt=prompt, reply=reply)
    print_results(asyncio.run(check_workflow(subject)), part="workflow", as_json=as_json)


async def _check_reward(spec: dict[str, Any], prompt: "Prompt", completions: list[str]) -> "list[CheckResult]":
    from contextlib import AsyncExitStack

    from astraflow.conformance.rewards import check_reward
    from astraflow.rewards import rewards
    from astraflow.runtime.plugins import start_managed

    plugin = rewards.build(spec)
    answer = _answer_of(prompt)
    async with AsyncExitStack() as resources:
        await start_managed((plugin,), resources)
        return await check_reward(plugin, prompt, completions or [answer, f"not {answer}"])


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidInput(
            f"cannot use {text[:40]!r} as the best reward: it is no finite number; write a number, or none",
            code="check.invalid_reward",
        )
    return value


async def _check_environment(
    spec: dict[str, Any], prompts: "list[Prompt]", expert: "Expert", best_reward: float | None
) -> "list[CheckResult]":
    from astraflow.conformance.environments import check_environment
    from astraflow.environments import environments

    return await check_environment(environments.build(spec), prompts, expert, best_reward=best_reward)


async def _check_named(spec: dict[str, Any], replies: list[str]) -> "list[CheckResult]":
    from astraflow.conformance.named_environments import NamedEnvironment, check_named_environment
    from astraflow.workflows.scripted.policies import in_order

    return await check_named_environment(NamedEnvironment.of(spec, in_order(*replies)))


def _expert(name: str) -> "Expert":
    """Returns the expert that a field of the prompts or a function describes. Raises: InvalidInput."""

    def follow(prompt: "Prompt", observations: "Sequence[Observation]") -> str:
        actions = str(prompt.fields.get(name, "")).splitlines()
        return actions[len(observations) - 1] if len(observations) <= len(actions) else ""

    module, separator, attribute = name.partition(":")
    if not separator:
        return follow
    function = getattr(sys.modules.get(module), attribute, None)
    if not callable(function):
        raise InvalidInput(
            f"cannot use {name!r} as expert: no such function in a loaded module; load the module with astraflow "
            "--plugin FILE",
            code="check.no_expert",
        )
    expert: Expert = function
    return expert


def _spec(kind: str, options: list[str]) -> dict[str, Any]:
    from astraflow.runtime.config.toml import parse_override

    spec: dict[str, Any] = {"kind": kind}
    for option in options:
        spec.update(parse_override(option))
    return spec


def _prompts(dataset: str) -> "list[Prompt]":
    """Returns the first prompts of a dataset. Raises: InvalidInput."""
    from astraflow.datasets import datasets

    try:
        spec = json.loads(dataset)
    except ValueError:
        spec = None
    if not isinstance(spec, dict):
        raise InvalidInput(
            f"""cannot parse --dataset: {dataset!r} is no JSON object; write '{{"kind": "letters"}}', quoted for the """
            "shell",
            code="check.invalid_dataset",
        )
    source = datasets.build(spec, 0)
    return [source.prompt(index) for index in range(min(_PROMPTS, source.size))]


def _answer_of(prompt: "Prompt") -> str:
    answer = prompt.fields.get("answer")
    return answer if isinstance(answer, str) else ""


def print_results(results: list[CheckResult], *, part: str, as_json: bool) -> None:
    """Prints the results. Raises: typer.Exit with code 1 when a check failed."""
    from astraflow.cli.output import show

    show(results, lambda results: result_table(results, part=part), as_json=as_json)
    if any(result.outcome is Outcome.FAILED for result in results):
        raise typer.Exit(1)


def result_table(results: list[CheckResult], *, part: str) -> "RenderableType":
    """Returns a row for each checked promise of the part, and how many there are of each outcome."""
    from rich.console import Group
    from rich.text import Text

    from astraflow.cli.output import Table

    styles = {Outcome.PASSED: "green", Outcome.FAILED: "red", Outcome.UNSUPPORTED: "yellow"}
    table = Table("", f"the {part}", "seconds", "detail", right=("seconds",))
    for result in results:
        mark = Text(result.outcome.value, style=styles[result.outcome])
        table.add(mark, result.promise, f"{result.seconds:.2f}" if result.seconds else "", result.detail)
    counts = {outcome: sum(result.outcome is outcome for result in results) for outcome in Outcome}
    return Group(table, Text(", ".join(f"{count} {outcome.value}" for outcome, count in counts.items())))
