"""Plays cases with a maintainer, and the rule alone beside it."""

from pathlib import Path
from tempfile import TemporaryDirectory

from maintainer.evals.case import Case
from maintainer.evals.scoring import Duel, Played, played
from maintainer.evals.stage import Stage, maintained, staged
from maintainer.evals.usage import used
from maintainer.llm.base import Llm
from maintainer.transcript import read


async def rule_alone(case: Case) -> Played:
    """What the rule makes of a case by itself."""
    with TemporaryDirectory() as directory:
        async with staged(case, Path(directory)) as stage:
            course = await stage.play(None)
            return played(course, priced_node_s=stage.priced_node_s, duplicates=_left_over(stage))


async def dueled(case: Case, llm: Llm, *, rule: Played | None = None) -> Duel:
    """A case, at its seed, with a maintainer. rule: alone, of the same case and seed, when it is known."""
    rule = rule or await rule_alone(case)
    with TemporaryDirectory() as name:
        directory = Path(name)
        async with staged(case, directory) as stage:
            async with maintained(stage, llm, directory) as maintainer:
                course = await stage.play(maintainer)
            use = used(read(directory / "transcript.jsonl").entries)
            violations = await violations_of(stage)
            mine = played(course, priced_node_s=stage.priced_node_s, duplicates=_left_over(stage))
    return Duel(
        case=case.name,
        group=case.group,
        seed=case.seed,
        violations=violations,
        use=use,
        played=mine,
        rule=rule,
    )


async def violations_of(stage: Stage) -> tuple[str, ...]:
    """All that was done and may not be."""
    journal, _ = await stage.ledger.decisions(pool="", before=None, limit=1_000_000)
    stage.auditor.check_journal(tuple((entry.kind, entry.actor.role) for entry in journal))
    return tuple(stage.auditor.violations)


def _left_over(stage: Stage) -> int:
    """Living machines that the ledger does not count."""
    known = {(one.id, one.instance.handle) for one in stage.ledger.alive()}
    alive = [(one.launch_id, node) for node, one in stage.cloud.machines.items() if not one.is_gone]
    return sum(1 for machine in alive if machine not in known)
