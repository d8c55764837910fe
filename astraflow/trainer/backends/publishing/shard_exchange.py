"""Exchange of shards: one rank assembles each whole tensor to hash and send it; no rank holds all tensors."""

import json
from collections.abc import Mapping, Sequence
from itertools import combinations, zip_longest
from typing import Any

import numpy as np

from astraflow.contract.errors import InvalidInput
from astraflow.contract.weights import TensorSpec
from astraflow.trainer.backends.publishing.gloo_group import GlooGroup
from astraflow.trainer.backends.shards import Box
from astraflow.weights.tensors import BitArray, Buffer, split_by_bytes, tensor_bits


class ShardExchange:
    """Plan of the shards that each rank holds and of the tensors that it assembles, about an equal number of bytes.

    Each round exchanges one tensor per rank, so that a rank needs memory for its part and at most one more tensor.
    """

    def __init__(self, specs: Sequence[TensorSpec], local_boxes: Mapping[str, Box], ranks: GlooGroup) -> None:
        """Collective. specs: tensors of the whole model, equal on every rank. local_boxes: boxes that this rank writes.

        Raises, on every rank: InvalidInput unless every element is written by exactly one rank; Unavailable.
        """
        self._ranks = ranks
        self._shares = split_by_bytes(specs, ranks.count)
        payload = json.dumps(encode_boxes(local_boxes)).encode()  # torch sends objects as pickle
        self._boxes = [decode_boxes(json.loads(received)) for received in ranks.all_gather(payload)]
        for spec in specs:
            _check_cover(spec, [boxes[spec.name] for boxes in self._boxes if spec.name in boxes])

    @property
    def own_specs(self) -> tuple[TensorSpec, ...]:
        """Tensors that this rank assembles, at their offsets in the whole version."""
        return self._shares[self._ranks.rank]

    def run(self, shards: Mapping[str, BitArray], target: Buffer) -> None:
        """Fills `target`, uint8 `[bytes of own_specs]`, with this rank's tensors from the shards of all ranks.

        Collective; blocks. shards: flat shards that this rank writes. Raises: Unavailable when a rank is lost.
        """
        for specs_by_rank in zip_longest(*self._shares):
            self._exchange_round(specs_by_rank, shards, target)

    def _exchange_round(
        self, specs_by_rank: tuple[TensorSpec | None, ...], shards: Mapping[str, BitArray], target: Buffer
    ) -> None:
        """Exchanges one tensor for each rank."""
        own_rank, own_spec = self._ranks.rank, specs_by_rank[self._ranks.rank]
        outgoing = {
            owner: shards[spec.name].view(np.uint8)
            for owner, spec in enumerate(specs_by_rank)
            if spec is not None and owner != own_rank and spec.name in shards
        }
        if own_spec is None:
            self._ranks.exchange(outgoing, {})
            return
        tensor = tensor_bits(_shifted(own_spec, by=self.own_specs[0].offset), target).reshape(own_spec.shape)
        boxes = {rank: boxes[own_spec.name] for rank, boxes in enumerate(self._boxes) if own_spec.name in boxes}
        if own_rank in boxes:
            tensor[boxes[own_rank].slices] = shards[own_spec.name].reshape(boxes[own_rank].shape)
        incoming = {rank: receive_buffer(tensor, box) for rank, box in boxes.items() if rank != own_rank}
        self._ranks.exchange(
            outgoing, {rank: received.reshape(-1).view(np.uint8) for rank, received in incoming.items()}
        )
        for rank, received in incoming.items():
            if not np.may_share_memory(received, tensor):
                tensor[boxes[rank].slices] = received


def receive_buffer(tensor: BitArray, box: Box) -> BitArray:
    """Returns the receive buffer of a shard: its part of `tensor` if contiguous, else a new array."""
    part = tensor[box.slices]
    return part if part.flags.c_contiguous else np.empty(box.shape, dtype=tensor.dtype)


def _shifted(spec: TensorSpec, *, by: int) -> TensorSpec:
    return TensorSpec(name=spec.name, dtype=spec.dtype, shape=spec.shape, offset=spec.offset - by)


def _check_cover(spec: TensorSpec, boxes: Sequence[Box]) -> None:
    """Checks that the boxes cover the tensor exactly once. Raises: InvalidInput."""
    written = sum(box.elements for box in boxes)
    whole = Box(offsets=(0,) * len(spec.shape), shape=spec.shape)
    is_inside = all(box.is_inside(whole) for box in boxes)
    if (
        written != spec.elements
        or not is_inside
        or any(first.overlaps(other) for first, other in combinations(boxes, 2))
    ):
        raise InvalidInput(
            f"cannot publish tensor {spec.name!r}: the ranks hold {written} elements of its {spec.elements}; place "
            "every element on exactly one writing rank",
            code="weights.shards_incomplete",
        )


def encode_boxes(boxes: Mapping[str, Box]) -> dict[str, Any]:
    """Returns boxes by tensor name as JSON values."""
    return {name: [box.offsets, box.shape] for name, box in boxes.items()}


def decode_boxes(values: Mapping[str, Any]) -> dict[str, Box]:
    """Returns what `encode_boxes` encoded."""
    return {name: Box(offsets=tuple(offsets), shape=tuple(shape)) for name, (offsets, shape) in values.items()}
