from dataclasses import replace

import pytest

from astraflow.contract.batches import Batch
from astraflow.trainer.backends.probe import MAX_SEQUENCES, ProbeText, probe_text_from_batch, random_probe_text
from tests import make


def batch(*, rows: int, model_tokens: int) -> Batch:
    """Returns a batch of rows with three prompt tokens each."""
    full_batch = make.batch(groups=rows // 2, members=2)
    return replace(
        full_batch,
        rows=tuple(replace(row, trajectory=make.trajectory(model_tokens=model_tokens)) for row in full_batch.rows),
    )


def scored(text: ProbeText) -> int:
    return sum(len(tokens) - begin for tokens, begin in zip(text.sequences, text.scored_from, strict=True))


@pytest.mark.parametrize(
    ("model_tokens", "sequences", "tokens"), [(5, 64, 320), (20, 16, 320), (100, 8, 800), (1000, 8, 8 * 253)]
)
def test_more_short_sequences_are_used_to_reach_the_token_count(model_tokens: int, sequences: int, tokens: int) -> None:
    text = probe_text_from_batch(batch(rows=128, model_tokens=model_tokens), sequences=8, tokens=256)

    assert text is not None
    assert (len(text.sequences), scored(text)) == (sequences, tokens)


def test_a_batch_with_few_tokens_is_used_completely() -> None:
    text = probe_text_from_batch(batch(rows=12, model_tokens=2), sequences=8, tokens=256)

    assert text is not None
    assert (len(text.sequences), scored(text)) == (12, 24)


def test_random_text_has_the_requested_token_count() -> None:
    text = random_probe_text(100, sequences=8, tokens=16, seed=0)

    assert (len(text.sequences), scored(text)) == (18, 270)
    assert len(random_probe_text(100, sequences=8, tokens=2, seed=0).sequences) == MAX_SEQUENCES
    assert len(random_probe_text(100, sequences=8, tokens=100, seed=0).sequences) == 8
