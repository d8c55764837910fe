"""What nodes wrote of tasks before they handed them back."""

from collections import Counter
from collections.abc import Iterable, Mapping

from astraflow.contract.ids import PolicyId, TaskId, Version
from astraflow.contract.partials import Partial, Recorded
from astraflow.contract.values import Json
from astraflow.dataflow.fates import HANDED_BACK, LATE

CONTINUED = "continued"
"""Another node went on with it."""
DISCARDED = "discarded"
"""Not used: the workflow took another way, the try failed, or a result came from elsewhere."""
STALE = "stale"
"""Dropped: begun with weights that are too old to be trained on by now."""
SAVED = "tokens_saved"
"""Tokens that were continued instead of being written again."""


class Prefixes:
    """The recordings of unfinished episodes, each kept until its task has a result.

        handed back ──► kept ──another node went on with it──► continued
                         ├───no use was made of it───────────► discarded
                         └───too old to be trained on────────► stale

    `handed_back == kept + continued + discarded + stale` always. A recording is an answer that was begun, so keeping it
    also keeps the data honest: to begin long answers anew whenever a node leaves would favour the short ones.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.kept_bytes = 0
        """Of what is kept now."""
        self._kept: dict[TaskId, Partial] = {}

    def keep(self, partial: Partial, floors: Mapping[PolicyId, Version]) -> None:
        """Take a recording; one that was kept for the same task has its end in it.

        floors: the oldest version of each policy that can still be trained on; a policy without one never grows old.
        """
        self.settle(partial.task, continued_tokens=partial.continued_tokens)
        self.counts[HANDED_BACK] += 1
        self._kept[partial.task] = partial
        self.kept_bytes += partial.size_bytes
        self._drop_if_stale(partial, floors)

    def get(self, task: TaskId) -> Partial | None:
        """What the next node of a task goes on with, if there is something."""
        return self._kept.get(task)

    def drop_stale(self, floors: Mapping[PolicyId, Version]) -> list[TaskId]:
        """Drop what is too old to be trained on by now; tells whose."""
        return [partial.task for partial in list(self._kept.values()) if self._drop_if_stale(partial, floors)]

    def settle(self, task: TaskId, *, continued_tokens: int) -> None:
        """The task has a result, or is begun anew.

        continued_tokens: how much of the recording is in the result.
        """
        if task in self._kept:
            saved = min(continued_tokens, self._kept[task].tokens)
            self.counts[SAVED] += saved
            self._drop(task, CONTINUED if saved else DISCARDED)

    def report(self) -> dict[str, int]:
        """The counts, with what is kept now."""
        return {
            **{reason: self.counts[reason] for reason in (HANDED_BACK, CONTINUED, DISCARDED, STALE, LATE, SAVED)},
            "kept": len(self._kept),
            "kept_bytes": self.kept_bytes,
        }

    def restore(self, partials: Iterable[Partial]) -> None:
        """Keep what was kept when the service stopped."""
        self._kept = {partial.task: partial for partial in partials}
        self.kept_bytes = sum(partial.size_bytes for partial in self._kept.values())

    def state_dict(self) -> dict[str, Json]:
        """The counts."""
        return dict(self.counts)

    def load_state_dict(self, counts: Mapping[str, int]) -> None:
        """Go on from there."""
        self.counts = Counter(counts)

    def _drop_if_stale(self, partial: Partial, floors: Mapping[PolicyId, Version]) -> bool:
        is_stale = any(_is_stale(recorded, floors) for recorded in partial.generations)
        if is_stale:
            self._drop(partial.task, STALE)
        return is_stale

    def _drop(self, task: TaskId, reason: str) -> None:
        self.kept_bytes -= self._kept.pop(task).size_bytes
        self.counts[reason] += 1


def _is_stale(recorded: Recorded, floors: Mapping[PolicyId, Version]) -> bool:
    floor = floors.get(recorded.policy)
    return floor is not None and any(span.version < floor for span in recorded.generation.spans)
