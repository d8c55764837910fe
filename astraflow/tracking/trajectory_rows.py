"""Sampled trajectories as one file of rows, which `datasets` and this project's data sets read."""

import json
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.contract.reports.queries import TrajectoryPage, TrajectoryQuery
from astraflow.contract.reports.report import SampledTrajectory
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.runtime.imports import needs_extra
from astraflow.tracking.traces import atif, trace_of

ENDINGS = (".parquet", ".jsonl")
"""Endings of the files that can be written."""
ATIF_ENDING = ".atif.jsonl"
"""Ending of files in the layout of ATIF, which Harbor reads."""
PAGE_ROWS = 500
"""Rows that are in memory together. Count."""

_ASSISTANT, _PROMPT = "assistant", "prompt"


def row_of(sample: SampledTrajectory) -> dict[str, Any]:
    """Returns a trajectory as a row. The lists `token_ids`, `roles`, `loss_mask`, `logprobs` and `versions` have an
    entry for each token; of tokens that the policy did not write, the last two are null.

    `question` and `answer` are those of the prompt; its other fields are in `prompt_fields`, as JSON.
    """
    fields = json.loads(sample.prompt_fields) if sample.prompt_fields else {}
    logprobs = iter(sample.logprobs)
    written = [span.author is Author.MODEL for span in sample.spans for _ in range(span.length)]
    return {
        "id": f"{sample.task}/{sample.index}",
        "flow": str(sample.flow),
        "policy": str(sample.policy),
        "group": str(sample.group),
        "role": sample.role,
        "step": sample.step,
        "outcome": sample.outcome,
        "reward": sample.reward,
        "reward_terms": json.dumps(dict(sample.reward_terms)),
        "turn_rewards": list(sample.turn_rewards),
        "is_truncated": sample.is_truncated,
        "question": str(fields.get("question", "")),
        "answer": str(fields.get("answer", sample.reference_text)),
        "prompt_fields": sample.prompt_fields or "{}",
        "prompt": sample.prompt_text,
        "completion": sample.completion_text,
        "token_ids": list(sample.token_ids),
        "roles": [_role(span) for span in sample.spans for _ in range(span.length)],
        "loss_mask": [int(is_written) for is_written in written],
        "logprobs": [next(logprobs, None) if is_written else None for is_written in written],
        "versions": [
            None if span.version is None else int(span.version) for span in sample.spans for _ in range(span.length)
        ],
    }


def _role(span: Span) -> str:
    return _ASSISTANT if span.author is Author.MODEL else span.speaker or _PROMPT


def write_rows(file: Path, pages: Iterable[Iterable[SampledTrajectory]]) -> int:
    """Writes trajectories; returns their number. The file is complete or absent.

    pages: as of `sample_pages`; one is in memory at a time.
    Raises: InvalidInput for another ending of the name, and for Parquet without pyarrow; OSError.
    """
    if file.suffix not in ENDINGS:
        raise InvalidInput(
            f"cannot write rows to {str(file)!r}: its name ends with none of {', '.join(ENDINGS)}; give such a name",
            code="trajectories.unknown_format",
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f"{file.name}.writing")
    write = _write_parquet if file.suffix == ".parquet" else _write_lines
    try:
        document = _atif if file.name.endswith(ATIF_ENDING) else row_of
        count = write(temporary, ([document(sample) for sample in page] for page in pages))
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    return count


def _atif(sample: SampledTrajectory) -> dict[str, Any]:
    return atif(trace_of(sample))


def sample_pages(
    find: Callable[[TrajectoryQuery], TrajectoryPage], share: float = 1.0
) -> Iterator[list[SampledTrajectory]]:
    """Yields the trajectories that have tokens, oldest first. share: of the groups, always the same ones."""
    after, has_more = 0, True
    while has_more:
        page = find(TrajectoryQuery(after=after, limit=PAGE_ROWS, with_tokens=True))
        oldest_first = page.trajectories[::-1]
        yield [sample for sample in oldest_first if sample.token_ids and _is_chosen(sample, share)]
        has_more = page.has_newer and bool(oldest_first)
        after = oldest_first[-1].ordinal if oldest_first else after


def _is_chosen(sample: SampledTrajectory, share: float) -> bool:
    return int.from_bytes(blake2b(sample.group.encode(), digest_size=8).digest()) < share * 2**64


def _write_lines(file: Path, pages: Iterator[list[dict[str, Any]]]) -> int:
    count = 0
    with file.open("w", encoding="utf-8") as lines:
        for rows in pages:
            lines.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            count += len(rows)
    return count


def _write_parquet(file: Path, pages: Iterator[list[dict[str, Any]]]) -> int:
    with needs_extra("data", to="write Parquet files"):
        import pyarrow as pa
        from pyarrow import parquet

    texts = ("id", "flow", "policy", "group", "role", "outcome", "reward_terms", "question", "answer", "prompt_fields")
    types = {name: pa.string() for name in (*texts, "prompt", "completion")}
    types |= {"step": pa.int64(), "reward": pa.float64(), "is_truncated": pa.bool_()}
    types |= {"turn_rewards": pa.list_(pa.float64()), "token_ids": pa.list_(pa.int32()), "roles": pa.list_(pa.string())}
    types |= {"loss_mask": pa.list_(pa.int8()), "logprobs": pa.list_(pa.float32()), "versions": pa.list_(pa.int64())}
    schema, count = pa.schema(list(types.items())), 0
    with parquet.ParquetWriter(file, schema) as writer:
        for rows in pages:
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
            count += len(rows)
    return count
