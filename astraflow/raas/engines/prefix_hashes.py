"""Hashes of the beginnings of a text, by which equal prefixes are found."""

from astraflow.contract.rollouts.trajectories import Int32Array


def block_hashes(tokens: Int32Array, block_tokens: int) -> tuple[int, ...]:
    """Returns for each whole block of tokens the hash of all tokens up to its end. Equal in one process only.

    >>> import numpy as np
    >>> one, other = np.arange(7, dtype=np.int32), np.array([0, 1, 2, 9], dtype=np.int32)
    >>> len(block_hashes(one, 2)), block_hashes(one, 2)[0] == block_hashes(other, 2)[0]
    (3, True)
    """
    hashes: list[int] = []
    running = 0
    for start in range(0, len(tokens) - block_tokens + 1, block_tokens):
        running = hash((running, tokens[start : start + block_tokens].tobytes()))
        hashes.append(running)
    return tuple(hashes)
