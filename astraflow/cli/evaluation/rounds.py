"""Evaluation round in the terminal: request, progress and result table."""

import asyncio
import getpass
from collections.abc import Iterable, Sequence
from functools import partial

from rich.console import Console
from rich.status import Status

from astraflow.cli.output import Table, show
from astraflow.cli.run_endpoints import RunEndpoint
from astraflow.client.control_plane import ControlPlaneClient
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import FlowId, PolicyId, Version
from astraflow.contract.reports.evaluations import EvaluationReport, EvaluationState
from astraflow.runtime import logs
from astraflow.runtime.retries import retry
from astraflow.runtime.service import run_process, run_until

POLL_INTERVAL_S = 0.5


def request_and_follow(endpoint: RunEndpoint, name: str, versions: Sequence[str], *, reason: str, as_json: bool) -> int:
    """Requests a round, waits for its end and prints it; returns the exit code, 0 for a round with scores.

    Raises: InvalidInput, Conflict, and errors of the connection to the run.
    """
    logs.configure(level="ERROR")
    notes = Console(highlight=False, stderr=True)
    ended: list[EvaluationReport] = []

    async def work() -> None:
        async with endpoint.dial() as link:
            client = ControlPlaneClient(link)
            chosen_versions = await _parse_versions(client, versions)
            requested = await client.evaluate(FlowId(name), chosen_versions, actor=getpass.getuser(), reason=reason)
            with notes.status(_progress(requested)) as status:
                ended.append(await _wait_for_end(client, requested, status))

    code = run_process(lambda stop: run_until(stop, work()))
    if not ended:
        if not code:
            notes.print("The round continues; `astraflow report` shows its result.")
        return code
    show(ended[0], lambda report: round_table([report]), as_json=as_json)
    return 0 if ended[0].state is EvaluationState.DONE and ended[0].scores else 1


def round_table(rounds: Iterable[EvaluationReport]) -> Table:
    """Returns the rounds with their scores, a row for each policy."""
    table = Table("evaluation", "round", "state", "samples", "policy", "version", "scores")
    for report in rounds:
        for policy, version in report.versions.items():
            policy_scores = [score for score in report.scores if score.policy == policy]
            scores_text = "  ".join(
                f"{score.name} {score.value:.3f}" + ("" if score.error is None else f" ± {score.error:.3f}")
                for score in policy_scores
            )
            table.add(
                report.flow,
                str(report.round or "—"),
                report.state.value,
                f"{report.done}/{report.total}" + (f", {report.masked} masked" if report.masked else ""),
                policy,
                str(version),
                scores_text or "—",
            )
    return table


async def _parse_versions(client: ControlPlaneClient, versions: Sequence[str]) -> dict[PolicyId, Version]:
    """Parses versions such as `12` or `solver=12`. Raises: InvalidInput."""
    parsed = {}
    for text in versions:
        policy, equals, number = text.rpartition("=")
        if not number.isdecimal():
            raise InvalidInput(
                f"cannot parse the version {text!r}: it has no number; write NUMBER or POLICY=NUMBER",
                code="evaluation.invalid_version",
            )
        name = PolicyId(policy) if equals else await _only_policy(client)
        parsed[name] = Version(int(number))
    return parsed


async def _only_policy(client: ControlPlaneClient) -> PolicyId:
    policies = [stream.policy for stream in (await client.report()).streams]
    if len(policies) > 1:
        names = ", ".join(policies)
        raise InvalidInput(
            f"cannot choose the policy: this run has several ({names}); name one, as in {policies[0]}=12",
            code="evaluation.policy_required",
        )
    return policies[0]


async def _wait_for_end(client: ControlPlaneClient, requested: EvaluationReport, status: Status) -> EvaluationReport:
    """Waits until the round has ended; retries while the run is unavailable."""
    read_round = partial(client.evaluations, flow=requested.flow, before=requested.round + 1, limit=1)
    while True:
        (report,) = await retry(read_round, what="reading the evaluation")
        if report.state is not EvaluationState.RUNNING:
            return report
        status.update(_progress(report))
        await asyncio.sleep(POLL_INTERVAL_S)


def _progress(report: EvaluationReport) -> str:
    versions = ", ".join(f"{policy} {version}" for policy, version in report.versions.items())
    return f"{report.flow}, round {report.round}, version {versions}: {report.done} of {report.total} samples"
