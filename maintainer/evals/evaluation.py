"""One maintainer over many cases and seeds: what was played is not played again; money and time are bounded."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from astraflow.contract.errors import Unavailable
from astraflow.runtime.clock import Clock
from maintainer.evals.case import Case
from maintainer.evals.keeping import Kept
from maintainer.evals.patience import Patient
from maintainer.evals.running import dueled, rule_alone
from maintainer.evals.scoring import Duel, Score
from maintainer.llm.models import models


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What one maintainer may use. It is looked at before every play: what is begun is played to its end."""

    usd: float | None = None
    """US dollars, those of plays that were kept included; None for as much as it takes."""
    minutes: float | None = None
    """From its first play in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """After a play."""

    done: int
    total: int
    seconds: float
    """Since this process began with this maintainer."""
    fresh: int
    """Plays in these seconds; the others were kept."""
    usd: float
    duel: Duel

    @property
    def left_s(self) -> float:
        """If the others take as long."""
        return self.seconds / self.fresh * (self.total - self.done) if self.fresh else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """What one maintainer came to."""

    model: str
    is_simulated: bool
    scores: tuple[Score, ...]
    """Of the cases that were played at every seed."""
    stopped: str = ""
    """Why not all were; empty when they were."""


class Evaluation:
    """Of one maintainer. `run` plays what is left."""

    def __init__(
        self,
        model: Mapping[str, Any],
        *,
        cases: Sequence[Case],
        seeds: Sequence[int],
        kept: Kept,
        clock: Clock,
        allowance: Allowance = Allowance(),
        is_stand_in: bool = False,
        on_play: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        """model: what it is built from. clock: the machine's own. is_stand_in: what answers is said to be no model.

        Raises: InvalidInput for a model that cannot be built, such as one without its key.
        """
        self._spec = model
        self._cases = cases
        self._seeds = seeds
        self._kept = kept
        self._clock = clock
        self._allowance = allowance
        self._on_play = on_play
        self._began_at = clock.now()
        self._usd = 0.0
        self._done = self._fresh = 0
        built = models.build(model)  # each play has a fresh one; this one is for its name
        self.name, self.is_simulated = built.model, built.is_simulated or is_stand_in
        self._named = built

    async def run(self) -> Evaluated:
        """Raises: Unavailable when the model's service stays out of reach; what was played is kept."""
        await self._named.close()
        self._began_at = self._clock.now()  # others may have played since it was made
        scores: list[Score] = []
        for case in self._cases:
            duels = [duel async for duel in self._duels(case)]
            if len(duels) < len(self._seeds):
                break
            scores.append(Score(duels=tuple(duels)))
        is_whole = len(scores) == len(self._cases)
        return Evaluated(
            model=self.name,
            is_simulated=self.is_simulated,
            scores=tuple(scores),
            stopped="" if is_whole else self._spent(),
        )

    async def _duels(self, case: Case) -> AsyncIterator[Duel]:
        """At every seed, or until no more may be used."""
        for seed in self._seeds:
            at_seed = replace(case, seed=seed)
            duel = self._kept.duel(at_seed, self._spec)
            if duel is None:
                if self._spent():
                    return
                duel = await self._played(at_seed)
            self._count(duel)
            yield duel

    async def _played(self, case: Case) -> Duel:
        rule = self._kept.rule(case)
        if rule is None:
            rule = await rule_alone(case)
            self._kept.keep_rule(case, rule)
        llm = Patient(models.build(self._spec), self._clock)
        try:
            duel = await dueled(case, llm, rule=rule)
        finally:
            await llm.close()
        if llm.gave_up is not None:
            raise Unavailable(
                f"{self.name} does not answer ({llm.gave_up}): {self._done} plays are kept in {self._kept.path}, and "
                "the same command goes on from there"
            )
        self._kept.keep_duel(case, self._spec, duel)
        self._fresh += 1
        return duel

    def _spent(self) -> str:
        """Which bound is reached; empty while none is."""
        usd, minutes = self._allowance.usd, self._allowance.minutes
        if usd is not None and self._usd >= usd:
            return f"{self._usd:.2f} of {usd:.2f} US dollars are spent"
        if minutes is not None and self._clock.now() - self._began_at >= 60 * minutes:
            return f"{minutes:g} minutes are over"
        return ""

    def _count(self, duel: Duel) -> None:
        self._done += 1
        self._usd += duel.use.usd
        self._on_play(
            Progress(
                done=self._done,
                total=len(self._cases) * len(self._seeds),
                seconds=self._clock.now() - self._began_at,
                fresh=self._fresh,
                usd=self._usd,
                duel=duel,
            )
        )
