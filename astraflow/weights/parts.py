"""Parts of a version: runs of whole tensors, which several publishers send in parallel.

A part is treated as a small version: its tensors, in order, from offset 0, with its own root hash. So it is transferred
like any version, in full or as a delta on the same part of the previous version.
"""

from collections.abc import Sequence
from dataclasses import replace

from astraflow.contract.errors import InvalidInput
from astraflow.contract.weights import Manifest, Part, TensorSpec
from astraflow.weights.tensors import root_hash


def split_by_bytes(specs: Sequence[TensorSpec], count: int) -> tuple[tuple[TensorSpec, ...], ...]:
    """Splits tensors in layout order into `count` runs of nearly equal bytes; a run may be empty.

    >>> from astraflow.contract.weights import Dtype
    >>> specs = [TensorSpec(name=f"t{at}", dtype=Dtype.BFLOAT16, shape=(4,), offset=8 * at) for at in range(3)]
    >>> [[spec.name for spec in run] for run in split_by_bytes(specs, 2)]
    [['t0'], ['t1', 't2']]
    """
    total = sum(spec.size_bytes for spec in specs)
    runs: list[list[TensorSpec]] = [[] for _ in range(count)]
    for spec in specs:
        middle = spec.offset + spec.size_bytes / 2
        runs[min(count - 1, int(middle * count / total)) if total else 0].append(spec)
    return tuple(tuple(run) for run in runs)


def part_covering(specs: Sequence[TensorSpec]) -> Part | None:
    """Returns the part that a run of tensors covers; None when it has no bytes."""
    size_bytes = sum(spec.size_bytes for spec in specs)
    return Part(offset=specs[0].offset, size_bytes=size_bytes) if size_bytes else None


def part_manifest(manifest: Manifest, part: Part) -> Manifest:
    """Returns a part as a separate version, without empty tensors. Raises: InvalidInput when it splits a tensor."""
    inside = [spec for spec in manifest.tensors if spec.size_bytes and part.offset <= spec.offset < part.end]
    if not inside or inside[0].offset != part.offset or inside[-1].offset + inside[-1].size_bytes != part.end:
        raise InvalidInput(
            f"cannot use bytes {part.offset} to {part.end} as a part of version {manifest.version} of "
            f"{manifest.policy!r}: they do not begin and end at tensor boundaries; use whole tensors",
            code="weights.part_splits_tensor",
        )
    tensors = tuple(replace(spec, offset=spec.offset - part.offset) for spec in inside)
    return Manifest(policy=manifest.policy, version=manifest.version, tensors=tensors, root_hash=root_hash(tensors))
