"""Runs cases with a maintainer, and with the rule alone for comparison."""

from pathlib import Path
from tempfile import TemporaryDirectory

from astraflow.scaling.simulation.result import SimulationResult
from maintainer.agent.llm.interface import Llm
from maintainer.agent.transcript.transcript import Kind, read
from maintainer.evals.cases import Case
from maintainer.evals.scoring.scoring import CaseResult, PairedResult, played
from maintainer.evals.scoring.usage import used
from maintainer.evals.simulation.harness import EvaluationHarness, open_case_maintainer, open_harness


async def run_rule_alone(case: Case) -> CaseResult:
    """Runs a case with the rule alone."""
    with TemporaryDirectory() as directory:
        async with open_harness(case, Path(directory)) as harness:
            return _result(harness, await harness.run(None))


async def run_pair(
    case: Case, llm: Llm, *, rule: CaseResult | None = None, usd_max: float | None = None
) -> PairedResult:
    """Runs a case at its seed with a maintainer. rule: result of the rule alone for the same case and seed, if known.

    usd_max: US dollars after which the maintainer calls its model no more, so that the result is cut; None for no
    limit.
    """
    rule = rule or await run_rule_alone(case)
    limits = {"day": {"usd": usd_max}} if usd_max is not None else {}
    with TemporaryDirectory() as name:
        directory = Path(name)
        async with open_harness(case, directory) as harness:
            async with open_case_maintainer(harness, llm, directory, **limits) as maintainer:
                result = await harness.run(maintainer)
            entries = read(directory / "transcript.jsonl").entries
            use = used(entries)
            violations = await find_violations(harness)
            case_result = _result(harness, result)
    return PairedResult(
        case=case.name,
        group=case.group,
        seed=case.seed,
        violations=violations,
        use=use,
        played=case_result,
        rule=rule,
        is_cut=any(entry.kind == Kind.BUDGET.value and entry.body["unit"] == "usd" for entry in entries),
    )


async def find_violations(harness: EvaluationHarness) -> tuple[str, ...]:
    """All forbidden changes found by the auditor."""
    journal, _ = await harness.ledger.decisions(pool="", before=None, limit=1_000_000)
    harness.auditor.check_journal(journal)
    return tuple(harness.auditor.violations)


def _result(harness: EvaluationHarness, result: SimulationResult) -> CaseResult:
    return played(
        result,
        priced_node_s=harness.priced_node_s,
        duplicates=_left_over(harness),
        wasted_s=harness.cloud.learning.wasted_s,
    )


def _left_over(harness: EvaluationHarness) -> int:
    """Running instances that the ledger does not count."""
    ledger_instances = {(record.id, record.instance.handle) for record in harness.ledger.alive()}
    alive = [(instance.launch_id, node) for node, instance in harness.cloud.machines.items() if not instance.is_gone]
    return sum(1 for instance in alive if instance not in ledger_instances)
