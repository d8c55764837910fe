"""Parts of a version: stretches of whole tensors, which several publishers send side by side.

A part is treated as a small version: its tensors, in their order, from offset 0, with a root hash of their own. So it
travels as any version does, in full or as a delta on the same part of the version before.
"""

from collections.abc import Sequence
from dataclasses import replace

from astraflow.contract.errors import InvalidInput
from astraflow.contract.weights import Manifest, Part, TensorSpec
from astraflow.weights.tensors import root_hash


def shared_out(specs: Sequence[TensorSpec], count: int) -> tuple[tuple[TensorSpec, ...], ...]:
    """Tensors in the order of the layout, cut into `count` stretches of nearly equal bytes; a stretch may be empty.

    >>> from astraflow.contract.weights import Dtype
    >>> specs = [TensorSpec(name=f"t{at}", dtype=Dtype.BFLOAT16, shape=(4,), offset=8 * at) for at in range(3)]
    >>> [[spec.name for spec in stretch] for stretch in shared_out(specs, 2)]
    [['t0'], ['t1', 't2']]
    """
    total = sum(spec.size_bytes for spec in specs)
    stretches: list[list[TensorSpec]] = [[] for _ in range(count)]
    for spec in specs:
        middle = spec.offset + spec.size_bytes / 2
        stretches[min(count - 1, int(middle * count / total)) if total else 0].append(spec)
    return tuple(tuple(stretch) for stretch in stretches)


def part_of(specs: Sequence[TensorSpec]) -> Part | None:
    """Where a stretch of tensors is; None when it has no bytes."""
    size_bytes = sum(spec.size_bytes for spec in specs)
    return Part(offset=specs[0].offset, size_bytes=size_bytes) if size_bytes else None


def part_manifest(manifest: Manifest, part: Part) -> Manifest:
    """A part as a version of its own, without its empty tensors. Raises: InvalidInput when it cuts a tensor in two."""
    inside = [spec for spec in manifest.tensors if spec.size_bytes and part.offset <= spec.offset < part.end]
    if not inside or inside[0].offset != part.offset or inside[-1].offset + inside[-1].size_bytes != part.end:
        raise InvalidInput(
            f"bytes {part.offset} to {part.end} are no part of {manifest.policy} version {manifest.version}: "
            "a part goes from the start of one tensor to the end of another"
        )
    tensors = tuple(replace(spec, offset=spec.offset - part.offset) for spec in inside)
    return Manifest(policy=manifest.policy, version=manifest.version, tensors=tensors, root_hash=root_hash(tensors))
