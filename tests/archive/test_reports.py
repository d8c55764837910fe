"""Recorded reports are decompressed up to a bound."""

import tracemalloc

import pytest
from zstandard import ZstdCompressor

from astraflow.archive.reports import MAX_REPORT_BYTES, compress_report, decompress_body, decompress_report
from astraflow.contract.errors import CorruptData
from tests.fakes.synthetic_run import SyntheticRun


@pytest.mark.long
def test_a_compressed_report_round_trips() -> None:
    report = SyntheticRun(nodes=tuple(f"node-{number}" for number in range(500))).report(150)

    assert decompress_report(compress_report(report)).nodes == report.nodes


@pytest.mark.parametrize("size_bytes", [2 * MAX_REPORT_BYTES, 16 * 2**20])
def test_a_row_that_declares_a_too_large_message_is_refused_before_allocation(size_bytes: int) -> None:
    bomb = ZstdCompressor(level=19).compress(b"\0" * size_bytes)
    assert len(bomb) < 2**14
    tracemalloc.start()
    with pytest.raises(CorruptData):
        decompress_body(bomb)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 2**20


def test_rows_without_a_declared_size_or_a_valid_frame_are_refused() -> None:
    unsized = ZstdCompressor(write_content_size=False).compress(b"report")
    for body in (unsized, b"", b"no frame", compress_report(SyntheticRun().report(1))[:-20]):
        with pytest.raises(CorruptData):
            decompress_report(body)
