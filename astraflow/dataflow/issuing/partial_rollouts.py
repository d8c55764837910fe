"""Partial rollouts: tokens that nodes generated for tasks before they handed them back."""

from collections import Counter
from collections.abc import Iterable, Mapping

from astraflow.contract.ids import PolicyId, TaskId, Version
from astraflow.contract.rollouts.partial_rollouts import PartialRollout, RecordedGeneration
from astraflow.contract.values import Json
from astraflow.dataflow.outcomes import HANDED_BACK, LATE

CONTINUED = "continued"
"""Another node continued the partial rollout."""
DISCARDED = "discarded"
"""Not used: the workflow took another path, the attempt failed, or another node returned a result."""
STALE = "stale"
"""Dropped: begun with weights that are now too old to be trained on."""
SAVED = "tokens_saved"
"""Tokens that were continued instead of being generated again."""


class PartialRollouts:
    """Partial rollouts of unfinished episodes, each stored until its task has a result.

        handed back ──► stored ──another node continued it───────► continued
                          ├──────not used────────────────────────► discarded
                          └──────too old to be trained on────────► stale

    Invariant: `handed_back == stored + continued + discarded + stale`. Storing partial rollouts also keeps the data
    unbiased: restarting long answers whenever a node leaves would favour short answers.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.stored_bytes = 0
        """Size of the stored partial rollouts. Bytes."""
        self._partials: dict[TaskId, PartialRollout] = {}

    def store(self, partial: PartialRollout, oldest_trainable_versions: Mapping[PolicyId, Version]) -> None:
        """Stores a partial rollout, replacing an earlier one of the same task.

        oldest_trainable_versions: by policy; rollouts of a policy that is absent are never stale.
        """
        self.settle(partial.task, continued_tokens=partial.continued_tokens)
        self.counts[HANDED_BACK] += 1
        self._partials[partial.task] = partial
        self.stored_bytes += partial.size_bytes
        self._drop_if_stale(partial, oldest_trainable_versions)

    def get(self, task: TaskId) -> PartialRollout | None:
        """Returns the partial rollout that the next node of a task continues, None if there is none."""
        return self._partials.get(task)

    def drop_stale(self, oldest_trainable_versions: Mapping[PolicyId, Version]) -> list[TaskId]:
        """Drops the partial rollouts that are too old to be trained on by now; returns their tasks."""
        return [
            partial.task
            for partial in list(self._partials.values())
            if self._drop_if_stale(partial, oldest_trainable_versions)
        ]

    def settle(self, task: TaskId, *, continued_tokens: int) -> None:
        """Removes the partial rollout of a task that has a result or starts again.

        continued_tokens: tokens of the partial rollout that the result contains.
        """
        if task in self._partials:
            saved = min(continued_tokens, self._partials[task].tokens)
            self.counts[SAVED] += saved
            self._drop(task, CONTINUED if saved else DISCARDED)

    def report(self) -> dict[str, int]:
        """Returns the counts and the stored amounts."""
        return {
            **{reason: self.counts[reason] for reason in (HANDED_BACK, CONTINUED, DISCARDED, STALE, LATE, SAVED)},
            "stored": len(self._partials),
            "stored_bytes": self.stored_bytes,
        }

    def restore(self, partials: Iterable[PartialRollout]) -> None:
        """Restores the partial rollouts that were stored when the service stopped."""
        self._partials = {partial.task: partial for partial in partials}
        self.stored_bytes = sum(partial.size_bytes for partial in self._partials.values())

    def state_dict(self) -> dict[str, Json]:
        return dict(self.counts)

    def load_state_dict(self, counts: Mapping[str, int]) -> None:
        """Restores the state."""
        self.counts = Counter(counts)

    def _drop_if_stale(self, partial: PartialRollout, oldest_trainable_versions: Mapping[PolicyId, Version]) -> bool:
        is_stale = any(_is_stale(recorded, oldest_trainable_versions) for recorded in partial.generations)
        if is_stale:
            self._drop(partial.task, STALE)
        return is_stale

    def _drop(self, task: TaskId, reason: str) -> None:
        self.stored_bytes -= self._partials.pop(task).size_bytes
        self.counts[reason] += 1


def _is_stale(recorded: RecordedGeneration, oldest_trainable_versions: Mapping[PolicyId, Version]) -> bool:
    oldest = oldest_trainable_versions.get(recorded.policy)
    return oldest is not None and any(span.version < oldest for span in recorded.generation.spans)
