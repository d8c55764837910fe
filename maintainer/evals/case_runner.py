"""Runs cases with a maintainer, and with the rule alone for comparison."""

from pathlib import Path
from tempfile import TemporaryDirectory

from maintainer.agent.llm.interface import Llm
from maintainer.agent.transcript.transcript import read
from maintainer.evals.cases import Case
from maintainer.evals.scoring.scoring import CaseResult, PairedResult, played
from maintainer.evals.scoring.usage import used
from maintainer.evals.simulation.harness import EvaluationHarness, open_case_maintainer, open_harness


async def run_rule_alone(case: Case) -> CaseResult:
    """Runs a case with the rule alone."""
    with TemporaryDirectory() as directory:
        async with open_harness(case, Path(directory)) as harness:
            result = await harness.run(None)
            return played(result, priced_node_s=harness.priced_node_s, duplicates=_left_over(harness))


async def run_pair(case: Case, llm: Llm, *, rule: CaseResult | None = None) -> PairedResult:
    """Runs a case at its seed with a maintainer. rule: result of the rule alone for the same case and seed, if
    known."""
    rule = rule or await run_rule_alone(case)
    with TemporaryDirectory() as name:
        directory = Path(name)
        async with open_harness(case, directory) as harness:
            async with open_case_maintainer(harness, llm, directory) as maintainer:
                result = await harness.run(maintainer)
            use = used(read(directory / "transcript.jsonl").entries)
            violations = await find_violations(harness)
            case_result = played(result, priced_node_s=harness.priced_node_s, duplicates=_left_over(harness))
    return PairedResult(
        case=case.name,
        group=case.group,
        seed=case.seed,
        violations=violations,
        use=use,
        played=case_result,
        rule=rule,
    )


async def find_violations(harness: EvaluationHarness) -> tuple[str, ...]:
    """All forbidden changes found by the auditor."""
    journal, _ = await harness.ledger.decisions(pool="", before=None, limit=1_000_000)
    harness.auditor.check_journal(tuple((entry.kind, entry.role) for entry in journal))
    return tuple(harness.auditor.violations)


def _left_over(harness: EvaluationHarness) -> int:
    """Running instances that the ledger does not count."""
    ledger_instances = {(record.id, record.instance.handle) for record in harness.ledger.alive()}
    alive = [(instance.launch_id, node) for node, instance in harness.cloud.machines.items() if not instance.is_gone]
    return sum(1 for instance in alive if instance not in ledger_instances)
