"""Planning of a training step on the first rank: advantages of rows, the division of the batch, and its teachers."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from traceback import extract_tb
from typing import Any

import torch
from torch import Tensor

from astraflow.algorithms.base import advantages
from astraflow.algorithms.checks import teacher_tokens
from astraflow.algorithms.config import AlgorithmConfig
from astraflow.algorithms.tokens import RowData
from astraflow.client.openai_server import TopScores
from astraflow.contract.batches import Batch, Rows
from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.runtime.plugins import plugin_cause
from astraflow.trainer.engines.base import Batching
from astraflow.trainer.step.flops import ForwardCost
from astraflow.trainer.step.rows import StepRows
from astraflow.trainer.step.shares import Plan, plan_step, row_data
from astraflow.trainer.step.teacher_endpoint import TeacherEndpoint
from astraflow.trainer.step.teacher_passes import teacher_passes, teachers_of_rows


class StepPlanner:
    """Plans steps on the first rank."""

    def __init__(
        self,
        algorithm: AlgorithmConfig,
        *,
        data_ranks: int,
        micro_batch_tokens: int,
        cost: ForwardCost,
        batching: Batching = Batching.PACKED,
        teachers: Mapping[str, TeacherEndpoint] | None = None,
    ) -> None:
        """batching: of the engines. teachers: servers that score the answers, by name."""
        self._algorithm = algorithm
        self._servers = teachers or {}
        self._top = teacher_tokens(algorithm)
        self._advantages = [
            (f"the advantage {spec['kind']!r}", advantages.build(spec)) for spec in algorithm.advantages
        ]
        self._data_ranks = data_ranks
        self._micro_batch_tokens = micro_batch_tokens
        self._cost = cost
        self._batching = batching

    def plan(self, batch: Batch) -> Plan:
        """Computes the advantages of the rows and divides the batch; asks the teachers' servers, if there are any.

        Raises: InvalidInput for a row without context; the errors of `TeacherEndpoint.scores`.
        """
        rows = StepRows.of(batch)
        columns = rows.columns
        facts = row_data(
            rows, is_excluded=[self._algorithm.mask_truncated and truncated for truncated in columns.is_truncated]
        )
        values = torch.tensor(columns.rewards, dtype=torch.float64)  # so that sums of equal rewards stay equal
        for name, advantage in self._advantages:
            with plugin_errors(name):
                values = checked_rows(advantage(values, facts), len(columns))
        plan = plan_step(
            rows,
            facts,
            values,
            minibatches=self._algorithm.minibatches,
            data_ranks=self._data_ranks,
            max_tokens=self._micro_batch_tokens,
            cost=self._cost,
            batching=self._batching,
        )
        return self._with_teachers(plan, batch, facts) if self._algorithm.teachers else plan

    def _with_teachers(self, plan: Plan, batch: Batch, facts: RowData) -> Plan:
        """Returns the plan with the scores of servers and the passes of other teachers."""
        teachers, columns = self._algorithm.teachers, Rows.of(batch.rows).columns
        passes = teacher_passes(
            batch,
            plan.rows_of_ranks(),
            teachers,
            max_tokens=self._micro_batch_tokens,
            cost=self._cost,
            batching=self._batching,
        )
        shares = [replace(share, teacher_passes=own) for share, own in zip(plan.shares, passes, strict=True)]
        plan = replace(plan, shares=tuple(shares))
        if not self._servers:
            return plan
        began, scores = time.perf_counter(), dict[int, TopScores]()
        names = teachers_of_rows(columns, teachers)
        for name, server in self._servers.items():
            rows = [row for row in range(len(columns)) if facts.is_counted[row] and names[row] == name]
            scores |= server.scores({row: columns.trajectory(row) for row in rows}, top=self._top)
        shares = [
            replace(share, **_scores_of(scores, members, len(share.behaviour_logprobs), self._top))
            for share, members in zip(plan.shares, plan.rows_of_ranks(), strict=True)
        ]
        return replace(plan, shares=tuple(shares), teacher_s=time.perf_counter() - began)


def _scores_of(scores: Mapping[int, TopScores], begins: Mapping[int, int], count: int, top: int) -> dict[str, Any]:
    """Returns the fields of a `Share` with the scores of servers. begins: first tokens of the rank's rows."""
    logprobs = torch.full((count,), torch.nan)
    tokens, top_logprobs = torch.full((count, top), -1, dtype=torch.int32), torch.full((count, top), -torch.inf)
    for row, begin in begins.items():
        if row in scores:
            own = slice(begin, begin + len(scores[row].logprobs))
            logprobs[own] = torch.from_numpy(scores[row].logprobs)
            tokens[own] = torch.from_numpy(scores[row].top_tokens)
            top_logprobs[own] = torch.from_numpy(scores[row].top_logprobs)
    heads = {"teacher_top_tokens": tokens, "teacher_top_logprobs": top_logprobs} if top else {}
    return {"teacher_logprobs": logprobs, **heads}


_COLLECTIVE_FILES = ("torch/distributed/", "trainer/engines/mesh.py")
"""Parts of paths in the traceback of an error that another rank causes."""


@contextmanager
def plugin_errors(plugin: str) -> Iterator[None]:
    """Raises InvalidInput, which a restart does not cure, for an error of a plugin in the block.

    plugin: its description, such as `the loss 'ppo'`. Errors of memory and of other ranks stay as they are.
    """
    try:
        yield
    except (AstraFlowError, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as problem:
        files = [frame.filename for frame in extract_tb(problem.__traceback__)]
        if any(part in file for part in _COLLECTIVE_FILES for file in files):
            raise
        raise InvalidInput(
            f"cannot train the batch: {plugin} failed: {plugin_cause(problem)}; correct it and start the run again",
            code="algorithm.plugin_failed",
        ) from problem


def checked_rows(values: object, rows: int) -> Tensor:
    """Returns the result of an advantage in float64. Raises: ValueError unless it is one finite number for each row."""
    if not isinstance(values, Tensor) or values.shape != (rows,):
        form = f"a tensor of shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"it returned {form}; return a tensor with one number for each of the {rows} rows")
    if not values.isfinite().all():
        raise ValueError("it returned a number that is not finite (NaN or infinite)")
    return values.double()
