"""A run with given training steps."""

from astraflow.contract.errors import Unavailable
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.reports.training_steps import TrainingStep, TrainingStepPage, TrainingStepQuery

SOLVER = PolicyId("solver")


def step(number: int, **metrics: float) -> TrainingStep:
    return TrainingStep(
        policy=SOLVER, step=number, at=1000.0 + number, version=Version(number), total_tokens=10 * number,
        total_episodes=number, reward=number / 8, metrics=metrics,
    )  # fmt: skip


class Steps:
    """Run with some steps, of which a page holds two; it fails first so many times."""

    def __init__(self, count: int, *, failures: int = 0) -> None:
        self.count = count
        self._failures = failures

    async def training_steps(self, query: TrainingStepQuery) -> TrainingStepPage:
        if self._failures:
            self._failures -= 1
            raise Unavailable("cannot reach it", code="test.away")
        steps = tuple(step(number, loss=number / 4) for number in range(query.after + 1, self.count + 1))
        return TrainingStepPage(steps=steps[:2], has_more=len(steps) > 2)
