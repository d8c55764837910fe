"""The benchmark works: all codecs agree on small versions, and sizes are in the documented order."""

from pathlib import Path

import numpy as np
import pytest

from astraflow.contract.weights import Dtype
from astraflow.weights.codec.chunks import chunk_at
from astraflow.weights.config import WeightsConfig
from astraflow.weights.store.store import open_store
from benchmarks.weights.__main__ import measure, plot, recorded_table, table
from benchmarks.weights.codecs import CODECS
from benchmarks.weights.updates import Pair, Training, pair_of, recorded, spans
from tests.weights.versions import POLICY, delta_file, full_file, layout, snapshot, stepped


@pytest.fixture(scope="module")
def pair() -> Pair:
    """Returns the first elements of a step that changes one of a hundred."""
    old, new = Training(size_bytes=2).pair(0.01).bits
    return pair_of(old[:300_000], new[:300_000])


@pytest.mark.long
def test_every_codec_reproduces_the_target_with_the_expected_size(pair: Pair) -> None:
    rows = {row.codec: row for row in measure(pair, CODECS, repeat=1)}

    assert rows["index64 + value"].bytes_per_changed == pytest.approx(10)
    assert rows["index + value"].bytes_per_changed == pytest.approx(6)
    assert rows["fast"].bytes_per_changed < 1.15
    assert rows["dense"].bytes_per_changed < 0.95
    assert rows["dense"].density == pytest.approx(0.01, abs=0.001)
    assert "| dense |" in table(list(rows.values()))
    assert "</svg>" in plot(list(rows.values()))


def test_recorded_versions_are_read_from_the_store(tmp_path: Path) -> None:
    tensors = [snapshot(0, {"weight": (Dtype.BFLOAT16, (64, 48))})]
    while len(tensors) < 5:
        tensors.append(stepped(tensors[-1], seed=len(tensors)))
    versions = [layout(version, number) for number, version in enumerate(tensors)]
    with open_store(tmp_path, WeightsConfig(full_snapshot_every=3)) as store:
        for number, version in enumerate(versions):
            transfer, data = delta_file(versions[number - 1], version) if number else full_file(*version)
            incoming = store.begin_upload(version[0], transfer)
            assert incoming is not None
            incoming.add(chunk_at(0, data))
            assert incoming.commit()
            store.apply_retention(POLICY)

    read_versions = recorded(tmp_path / POLICY)

    assert [np.array_equal(buffer, kept) for (_, buffer), (_, kept) in zip(read_versions, versions, strict=True)] == [
        True
    ] * 5
    assert [(pair.base.version, pair.target.version) for pair in spans(read_versions, 2)] == [(1, 3)]
    assert "| 1 | 3 |" in recorded_table(tmp_path / POLICY, [1, 32])
