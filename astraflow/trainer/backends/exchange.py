"""From shards to whole tensors, each at one rank: so that it can be hashed, and sent, without any rank holding all."""

import json
from collections.abc import Mapping, Sequence
from itertools import combinations, zip_longest

import numpy as np

from astraflow.contract.errors import InvalidInput
from astraflow.contract.weights import TensorSpec
from astraflow.trainer.backends.ranks import Ranks
from astraflow.trainer.backends.shards import Box
from astraflow.weights.parts import shared_out
from astraflow.weights.tensors import BitArray, Buffer, tensor_bits


class Exchange:
    """Who holds what of each tensor, and which rank brings it together: of `n` ranks each about an `n`-th of the bytes.

    One tensor of each rank is exchanged at a time, so that beside its part a rank needs room for one tensor at most.
    """

    def __init__(self, specs: Sequence[TensorSpec], held: Mapping[str, Box], ranks: Ranks) -> None:
        """specs: of the whole model, the same on every rank. held: what this rank writes; collective.

        Raises, on every rank alike: InvalidInput unless every element is written by one rank; Unavailable.
        """
        self._ranks = ranks
        self._shares = shared_out(specs, ranks.count)
        self._boxes = [_decoded(said) for said in ranks.gathered(_encoded(held))]
        for spec in specs:
            _check_cover(spec, [boxes[spec.name] for boxes in self._boxes if spec.name in boxes])

    @property
    def own(self) -> tuple[TensorSpec, ...]:
        """The tensors that are brought together here, at their places in the whole version."""
        return self._shares[self._ranks.rank]

    def run(self, shards: Mapping[str, BitArray], into: Buffer) -> None:
        """Fill `into`, uint8 `[bytes of own]`, with the own tensors, out of what all ranks hold; collective, blocks.

        shards: what this rank writes, flat. Raises: Unavailable when a rank is gone.
        """
        for turn in zip_longest(*self._shares):
            self._bring(turn, shards, into)

    def _bring(self, turn: tuple[TensorSpec | None, ...], shards: Mapping[str, BitArray], into: Buffer) -> None:
        """One tensor for each rank."""
        here, mine = self._ranks.rank, turn[self._ranks.rank]
        out = {
            owner: shards[spec.name].view(np.uint8)
            for owner, spec in enumerate(turn)
            if spec is not None and owner != here and spec.name in shards
        }
        if mine is None:
            self._ranks.swap(out, {})
            return
        place = tensor_bits(_moved(mine, by=self.own[0].offset), into).reshape(mine.shape)
        boxes = {rank: boxes[mine.name] for rank, boxes in enumerate(self._boxes) if mine.name in boxes}
        if here in boxes:
            place[boxes[here].slices] = shards[mine.name].reshape(boxes[here].shape)
        targets = {rank: _target(place, box) for rank, box in boxes.items() if rank != here}
        self._ranks.swap(out, {rank: target.reshape(-1).view(np.uint8) for rank, target in targets.items()})
        for rank, target in targets.items():
            if not np.may_share_memory(target, place):
                place[boxes[rank].slices] = target


def _target(place: BitArray, box: Box) -> BitArray:
    """Where a shard is received: at its place if that is one stretch of memory, else beside it."""
    found = place[box.slices]
    return found if found.flags.c_contiguous else np.empty(box.shape, dtype=place.dtype)


def _moved(spec: TensorSpec, *, by: int) -> TensorSpec:
    return TensorSpec(name=spec.name, dtype=spec.dtype, shape=spec.shape, offset=spec.offset - by)


def _check_cover(spec: TensorSpec, boxes: Sequence[Box]) -> None:
    """Raises: InvalidInput."""
    written = sum(box.elements for box in boxes)
    whole = Box(offsets=(0,) * len(spec.shape), shape=spec.shape)
    is_inside = all(box.is_inside(whole) for box in boxes)
    if written != spec.elements or not is_inside or any(one.overlaps(other) for one, other in combinations(boxes, 2)):
        raise InvalidInput(
            f"the ranks hold {written} elements of {spec.name}, which has {spec.elements}: each must be held by one"
        )


def _encoded(held: Mapping[str, Box]) -> bytes:
    """As JSON: torch's own way of sending objects is pickle."""
    return json.dumps({name: [box.offsets, box.shape] for name, box in held.items()}).encode()


def _decoded(said: bytes) -> dict[str, Box]:
    return {
        name: Box(offsets=tuple(offsets), shape=tuple(shape)) for name, (offsets, shape) in json.loads(said).items()
    }
