import numpy as np

from astraflow.weights.codec.chunks import split


def test_chunks_are_views_not_copies() -> None:
    data = np.zeros(10, dtype=np.uint8)

    (chunk,) = split(data.data)
    data[0] = 7

    assert chunk.data[0] == 7
