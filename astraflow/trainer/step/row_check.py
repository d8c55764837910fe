"""Check of the rows of a batch before the forward pass: a bad row is dropped and counted, and never ends the trainer.

Dataflow refuses such results, but rows may be older than the limits that the trainer stated when it attached.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
from transformers import PretrainedConfig

from astraflow.algorithms.config import TeacherConfig
from astraflow.contract.batches import Batch, Rows
from astraflow.contract.ids import node_name
from astraflow.contract.rollouts.expert_columns import has_other_experts
from astraflow.contract.rollouts.limits import MAX_LOGPROB, MIN_LOGPROB, RowLimits
from astraflow.contract.rollouts.token_columns import ID_COLUMNS, TokenColumn
from astraflow.contract.rollouts.trajectories import NO_VERSION, TrajectoryColumns
from astraflow.contract.training_metrics import DROPPED_PREFIX, DROPPED_ROWS
from astraflow.models.mixtures import mixture_of
from astraflow.runtime.logs import get_logger
from astraflow.trainer.step.teacher_passes import teachers_of_rows

log = get_logger()


def row_limits_of(config: PretrainedConfig) -> RowLimits:
    """Returns the limits of a model: rows of its embedding, positions if it states their number, and experts."""
    return RowLimits(
        vocabulary=config.vocab_size,
        tokens=getattr(config, "max_position_embeddings", None),
        mixture=mixture_of(config.to_dict()),
    )


def without_bad_rows(
    batch: Batch,
    limits: RowLimits,
    teachers: Mapping[str, TeacherConfig] = MappingProxyType({}),
    *,
    excluded_nodes: frozenset[str] = frozenset(),
) -> tuple[Batch, Mapping[str, float]]:
    """Returns the batch without bad rows, and metrics that count them by cause; none for a batch without bad rows.

    teachers: of the algorithm, one of which must be able to score each row. excluded_nodes: names of nodes whose rows
    are bad (`node_mismatch`). The other rows of a task with a bad row are dropped too: they are compared by their
    position in the task.
    """
    rows = Rows.of(batch.rows)
    causes = dict(reversed(list(_bad_rows(rows.columns, limits, newest=int(batch.version)))))
    if teachers:
        causes |= dict(_bad_teachers(rows.columns, limits, teachers))
    if excluded_nodes:
        causes |= {row: "mismatch" for row, node in enumerate(rows.nodes) if node_name(node) in excluded_nodes}
    if not causes:
        return batch, {}
    bad_tasks = {rows.tasks[row] for row in causes}
    is_kept = [task not in bad_tasks for task in rows.tasks]
    counts = Counter(causes.values())
    nodes = sorted({rows.nodes[row] for row in causes})
    log.error("rows_dropped", batch=batch.id, rows=is_kept.count(False), causes=dict(counts), nodes=nodes)
    metrics = {f"{DROPPED_PREFIX}{cause}": float(count) for cause, count in sorted(counts.items())}
    return replace(batch, rows=rows.where(is_kept)), {DROPPED_ROWS: float(is_kept.count(False)), **metrics}


def _bad_rows(columns: TrajectoryColumns, limits: RowLimits, *, newest: int) -> Iterator[tuple[int, str]]:
    """Yields bad rows with the limit that each breaks; a row may come again. newest: version of the batch."""
    token_ends, logprob_ends, span_ends = map(np.array, (columns.token_ends, columns.logprob_ends, columns.span_ends))
    versions = np.array([*columns.span_versions, NO_VERSION])
    ids = np.asarray(columns.tokens, np.int32).view(np.uint32)  # negative ids are large
    logprobs = columns.logprobs
    is_logprob = (logprobs >= MIN_LOGPROB) & (logprobs <= MAX_LOGPROB)  # false for what is not a number
    begins_written = (versions[span_ends[:-1]] != NO_VERSION) & (np.diff(span_ends) > 0)
    yield from _of_entries(ids >= (limits.vocabulary or 2**31), token_ends, "token_id")
    for column in ID_COLUMNS & columns.token_columns.keys():
        largest = columns.token_columns[column].max(1, initial=0)
        yield from _of_entries(largest >= (limits.vocabulary or 2**31), logprob_ends, "token_id")
    experts = columns.token_columns.get(TokenColumn.EXPERTS)
    if experts is not None and limits.mixture is not None:
        yield from _of_entries(has_other_experts(experts, limits.mixture), logprob_ends, "experts")
    yield from _of_rows(np.diff(token_ends) > (limits.tokens or np.inf), "tokens")
    yield from _of_rows(begins_written, "no_context")
    yield from _of_entries(~is_logprob, logprob_ends, "logprob")
    yield from _of_entries(versions[:-1] > newest, span_ends, "version")
    yield from _of_rows(~np.isfinite(np.array(columns.rewards, np.float64)), "reward")


def _bad_teachers(
    columns: TrajectoryColumns, limits: RowLimits, teachers: Mapping[str, TeacherConfig]
) -> Iterator[tuple[int, str]]:
    """Yields rows that no teacher can score, because it is unknown, or because its prompt is absent or too long."""
    names, written = teachers_of_rows(columns, teachers), np.diff(columns.logprob_ends)
    for row, name in enumerate(names):
        if name not in teachers:
            yield row, "teacher"
        elif teachers[name].policy is not None:
            prompt = columns.built[row].teacher_prompt if row in columns.built else ()
            rest = columns.token_ends[row + 1] - columns.token_ends[row] - columns.prompt_length(row)
            is_long = len(prompt) + rest > (limits.tokens or np.inf)
            if written[row] and (not prompt or is_long or max(prompt) >= (limits.vocabulary or 2**31)):
                yield row, "teacher_prompt"


def _of_rows(is_bad: npt.NDArray[np.bool_], cause: str) -> Iterator[tuple[int, str]]:
    return ((int(row), cause) for row in np.flatnonzero(is_bad))


def _of_entries(is_bad: npt.NDArray[np.bool_], ends: npt.NDArray[np.integer], cause: str) -> Iterator[tuple[int, str]]:
    """Yields the rows of bad entries. ends: of the rows in the array, after a 0."""
    rows = np.searchsorted(ends, np.flatnonzero(is_bad), side="right") - 1
    return ((int(row), cause) for row in np.unique(rows))
