"""`astraflow check reward|environment|workflow`: checks plugins on prompts of a dataset, without a model."""

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from astraflow.cli.check_tables import print_results
from astraflow.contract.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from astraflow.contract.checks import CheckResult
    from astraflow.contract.tasks import Prompt
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
) -> None:
    """Check a reward against the promises of the interface; exit with code 1 if it breaks one."""
    print_results(asyncio.run(_check_reward(_spec(kind, options), _prompts(dataset)[0], completions)), part="reward")


def environment(
    kind: Kind,
    dataset: Dataset,
    options: Options = [],  # noqa: B006 (typer copies it)
    plan: Annotated[
        str,
        typer.Option(help="Field of the prompts with actions that win, one in a line; empty: there is none."),
    ] = "answer",
) -> None:
    """Check an environment against the promises of the interface; exit with code 1 if it breaks one."""
    print_results(asyncio.run(_check_environment(_spec(kind, options), _prompts(dataset), plan)), part="environment")


def workflow(
    kind: Kind,
    dataset: Dataset,
    options: Options = [],  # noqa: B006 (typer copies it)
    replies: Annotated[
        list[str],
        typer.Option("--reply", help="What every policy replies, in order, the last one again; may be repeated."),
    ] = [],  # noqa: B006 (the same)
) -> None:
    """Check a workflow against the promises of the interface; exit with code 1 if it breaks one."""
    from astraflow.workflows.conformance import WorkflowCheck, check_workflow
    from astraflow.workflows.scripted_policies import in_order

    prompt = _prompts(dataset)[0]
    reply = in_order(*(replies or [_answer_of(prompt) or "42"]))
    subject = WorkflowCheck(spec=_spec(kind, options), prompt=prompt, reply=reply)
    print_results(asyncio.run(check_workflow(subject)), part="workflow")


async def _check_reward(spec: dict[str, Any], prompt: "Prompt", completions: list[str]) -> "list[CheckResult]":
    from contextlib import AsyncExitStack

    from astraflow.rewards import rewards
    from astraflow.rewards.conformance import check_reward
    from astraflow.runtime.managed_plugins import start_managed

    plugin = rewards.build(spec)
    answer = _answer_of(prompt)
    async with AsyncExitStack() as resources:
        await start_managed((plugin,), resources)
        return await check_reward(plugin, prompt, completions or [answer, f"not {answer}"])


async def _check_environment(spec: dict[str, Any], prompts: "list[Prompt]", plan: str) -> "list[CheckResult]":
    from dataclasses import replace

    from astraflow.contract.checks import Outcome
    from astraflow.environments import environments
    from astraflow.environments.conformance import WINS, check_environment

    has_plan = bool(plan) and all(isinstance(prompt.fields.get(plan), str) for prompt in prompts)
    has_plan = has_plan and all(prompt.fields[plan] for prompt in prompts)
    results = await check_environment(environments.build(spec), prompts, _expert(plan if has_plan else ""))
    if has_plan:
        return results
    detail = f"no plan: the prompts have no actions in the field {plan!r}; name it with --plan"
    return [
        replace(result, outcome=Outcome.UNSUPPORTED, detail=detail) if result.promise == WINS else result
        for result in results
    ]


def _expert(plan: str) -> "Expert":
    """Returns an expert that follows the plan in a field, or takes the first possible action without one."""

    def follow(prompt: "Prompt", observations: "Sequence[Any]") -> str:
        return str(prompt.fields[plan]).splitlines()[len(observations) - 1]

    def first(prompt: "Prompt", observations: "Sequence[Any]") -> str:
        actions = observations[-1].actions
        return str(actions[0]) if actions else "look"

    return follow if plan else first


def _spec(kind: str, options: list[str]) -> dict[str, Any]:
    from astraflow.runtime.toml import parse_override

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
