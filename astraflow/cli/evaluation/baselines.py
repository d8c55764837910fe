"""Baseline in the terminal: subject, progress, table of the scores, and a file with every sample."""

import json
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

from rich.console import Console, Group
from rich.text import Text

from astraflow.baselines.report import BaselineReport, SampleResult
from astraflow.baselines.round import BaselineRound
from astraflow.baselines.selection import Selection, by_policy, select
from astraflow.baselines.subjects import Subject, endpoint_subject, folder_subject, model_folder
from astraflow.cli.output import Table, show
from astraflow.contract.errors import InvalidInput
from astraflow.contract.reports.evaluations import EvaluationState
from astraflow.raas.engines import engines
from astraflow.recipe.config import Recipe
from astraflow.recipe.loading import Check, load_recipe
from astraflow.runtime import logs
from astraflow.runtime.service import run_process, run_until

SIMULATED_KIND = "scripted"
LOCAL_KIND = "local_torch"

BuildSubject: TypeAlias = Callable[[AsyncExitStack], Awaitable[Subject]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRequest:
    """Tasks on which a subject is scored, and the form of the results."""

    recipe: str
    overrides: tuple[str, ...]
    name: str
    samples: int
    """Samples of each prompt; 0: as in the recipe."""
    prompts: int
    """Number of prompts; 0: as in the recipe."""
    seed: int | None
    concurrency: int
    timeout_s: float
    episodes: Path | None
    as_json: bool


def read_key(file: Path | None, variable: str) -> str:
    """Returns the API key of a file or an environment variable; empty when neither is named. Raises: InvalidInput."""
    if file is not None and variable:
        raise InvalidInput(
            "cannot choose the API key: a file and a variable are given; give one of them", code="baseline.two_keys"
        )
    if file is not None:
        try:
            key = file.read_text().strip()
        except (OSError, UnicodeDecodeError) as problem:
            raise InvalidInput(
                f"cannot read the API key: {problem}; name a file with the key", code="baseline.no_key"
            ) from problem
    else:
        key = os.environ.get(variable, "").strip() if variable else ""
    if (file is not None or variable) and (
        not key or not key.isascii() or any(character.isspace() for character in key)
    ):
        raise InvalidInput(
            f"cannot use the API key: {str(file) if file else variable!r} holds none, or something else; it must hold "
            "one line, the key",
            code="baseline.no_key",
        )
    return key


def score_folders(request: BaselineRequest, folders: Sequence[str], *, engine: str) -> int:
    """Scores model folders and prints the result; returns the exit code. Raises: InvalidInput, Unavailable."""
    recipe, selection = _load(request)
    spec = _engine_spec(recipe, engine)
    paths = {
        policy: model_folder(path)
        for policy, path in by_policy(folders, selection.policies, option="the folder").items()
    }
    return _score(request, selection, lambda resources: folder_subject(paths, spec, resources))


def score_endpoint(request: BaselineRequest, options: Mapping[str, Any], models: Sequence[str], *, key: str) -> int:
    """Scores an endpoint and prints the result; returns the exit code. Raises: InvalidInput."""
    from astraflow.agents.upstream.client import Upstream, UpstreamOptions

    _, selection = _load(request)
    names = by_policy(models, selection.policies, option="--model")
    parsed = UpstreamOptions.parse(dict(options), where="endpoint")
    upstream = Upstream(parsed, key=key)
    return _score(request, selection, lambda resources: endpoint_subject(upstream, parsed.base_url, names, resources))


def _load(request: BaselineRequest) -> tuple[Recipe, Selection]:
    recipe = load_recipe(request.recipe, request.overrides, check=Check.LIGHT)  # an endpoint needs no torch
    selection = select(recipe, request.name, samples=request.samples, prompts=request.prompts, seed=request.seed)
    return recipe, selection


def _score(request: BaselineRequest, selection: Selection, build: BuildSubject) -> int:
    """Runs the round; returns 0 if it is complete and has scores."""
    logs.configure(level="CRITICAL")  # failures are in the result
    notes = Console(highlight=False, stderr=True)
    rounds: list[BaselineRound] = []

    async def work() -> None:
        async with AsyncExitStack() as resources:
            status = resources.enter_context(notes.status(f"preparing {selection.name}"))
            record = resources.enter_context(_recording(request.episodes))
            subject = await build(resources)

            def on_sample(sample: SampleResult) -> None:
                record(sample)
                status.update(f"{selection.name}: {rounds[0].done} of {rounds[0].total} samples")

            rounds.append(
                BaselineRound(
                    selection,
                    subject,
                    concurrency=request.concurrency,
                    timeout_s=request.timeout_s,
                    on_sample=on_sample,
                )
            )
            await rounds[0].run()

    code = run_process(lambda stop: run_until(stop, work()))
    if code or not rounds:
        return code or 1
    report = rounds[0].report()
    show(report.json_value(), lambda _: _report_text(report), as_json=request.as_json)
    return 0 if report.state is EvaluationState.DONE and report.scores else 1


def _report_text(report: BaselineReport) -> Group:
    table = Table("policy", "score", "value", "95 % interval", "method", "prompts", wrapped=())
    for score in report.scores:
        interval = score.interval
        bounds = f"{interval.low:.3f} to {interval.high:.3f}" if interval else "—"
        method = interval.method.value if interval else "—"
        table.add(score.policy, score.name, f"{score.value:.3f}", bounds, method, str(score.prompts))
    failures = ", ".join(f"{boundary} {count}" for boundary, count in sorted(report.failures.items())) or "none"
    lines = [
        f"{report.evaluation}: {report.state.value}; {report.done} of {report.total} samples, "
        f"{report.complete_prompts} of {report.prompts} prompts complete, {report.duration_s:.1f} s",
        f"masked: {report.masked} (by boundary: {failures}); repeated attempts: {report.retried}",
        "used: " + ", ".join(f"{name} {value}" for name, value in report.usage.items()),
        *(f"failure: {message}" for message in report.errors),
        *([f"stopped early: {report.reason}"] if report.reason else []),
    ]
    return Group(table, *map(Text, lines))


def _engine_spec(recipe: Recipe, engine: str) -> dict[str, Any]:
    """Returns the spec of the engine. Raises: InvalidInput."""
    if not engine:
        spec = recipe.nodes.engine
        return {"kind": LOCAL_KIND} if spec.get("kind") == SIMULATED_KIND else spec
    spec = {"kind": engine}
    if engine.startswith("{"):
        try:
            spec = json.loads(engine)
        except ValueError as problem:
            raise InvalidInput(
                f"cannot read the engine {engine!r}: {problem}; write its kind, or kind and options as a JSON object",
                code="baseline.invalid_engine",
            ) from problem
    engines.check(spec)
    return spec


@contextmanager
def _recording(file: Path | None) -> Iterator[Callable[[SampleResult], None]]:
    """Yields a function that writes each sample to a new file immediately, so that a killed process loses none."""
    if file is None:
        yield lambda sample: None
        return
    try:
        opened = file.open("x")
    except OSError as problem:
        raise InvalidInput(
            f"cannot write the samples: {problem}; name a new file in an existing folder",
            code="baseline.episodes_not_written",
        ) from problem
    with opened:
        yield lambda sample: _write(opened, sample)


def _write(file: IO[str], sample: SampleResult) -> None:
    file.write(json.dumps(sample.json_value()) + "\n")
    file.flush()
