"""Publishing of a model sharded over ranks through one staging buffer: no rank ever gathers the model on its device."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from astraflow.contract.errors import AstraFlowError, InvalidInput, UnknownVersion
from astraflow.contract.weights import Dtype, SharedFile
from astraflow.models.precision import torch_dtype_of
from astraflow.models.published import PublishedParts
from astraflow.trainer.backends.host_copy import HostCopy
from astraflow.trainer.backends.published_shards import PublishedShards
from astraflow.trainer.backends.rank_group import RankGroup
from astraflow.trainer.backends.shard_exchange import decode_boxes, encode_boxes, receive_buffer
from astraflow.trainer.backends.shards import Box, LocalShard
from astraflow.weights.shared_memory import map_writable
from astraflow.weights.staging_buffers import StagedVersion, tensor_views
from astraflow.weights.tensors import BITS, Buffer, TensorShapes, TensorViews, lay_out

RANK_TIMEOUT_S = 300.0
"""Default of the seconds that ranks wait for another rank before they treat it as lost."""


class ShardedWeights:
    """Weights of one rank of a model under `fully_shard` (FSDP2): its shards and their targets.

            first rank: staging buffer ─► its name to all ─► ranks that can map it copy their shards into it
                                            └► ranks on other hosts, or all where the buffer is not in shared memory,
                                               send their shards to the first rank, one tensor at a time
            all are done, or all raise ─► first rank: publishes

    Shards of any dimension may be uneven or empty; of replicas one is written. Every rank calls `snapshot` at the same
    time, between two steps.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        *,
        dtype: Dtype,
        device: torch.device,
        parts: PublishedParts | None = None,
        group: dist.ProcessGroup | None = None,
        rank_timeout_s: float = RANK_TIMEOUT_S,
    ) -> None:
        """Collective. parameters: by `state_dict` name, tied parameters once; the same on every rank. parts: how they
        are published; None: whole. group: all ranks of the model; None is the default group.

        Raises: InvalidInput for a placement that is neither Shard nor Replicate.
        """
        self._published = PublishedShards(parameters, parts or {})
        self._dtype = dtype
        self._ranks = RankGroup(group, timeout_s=rank_timeout_s)
        self._host_copy = HostCopy(device)
        self._mapped_buffers: dict[str, Buffer] = {}

    @property
    def published_shapes(self) -> TensorShapes:
        """Shapes of the whole tensors, of which this rank may hold a part."""
        return self._published.tensor_shapes(self._dtype)

    @property
    def is_first(self) -> bool:
        """True on the rank that provides the staging buffer and publishes."""
        return self._ranks.is_first

    def snapshot(self, staged: StagedVersion | None) -> None:
        """Writes the current weights; collective. staged: the first rank's; None on the others.

        Raises, on every rank alike: InvalidInput when a rank could not write; Unavailable when a rank is lost.
        """
        if staged is None:
            self._write_together(None, None)
        else:
            with staged.open_for_writing() as views:
                self._write_together(staged.buffer.file, views)

    def _write_together(self, file: SharedFile | None, views: TensorViews | None) -> None:
        file = self._broadcast_file(file)
        shards = self._published.local(is_first=self.is_first)
        problem: AstraFlowError | None = None
        try:
            targets = self._map_views(file) if views is None else views
            if targets is not None:
                self._write(shards, targets)
        except AstraFlowError as error:
            problem, targets = error, None
        sent = {} if targets is not None or problem is not None else shards
        answers = self._ranks.all_gather(
            json.dumps({"has_failed": problem is not None, "boxes": encode_boxes(_boxes(sent))}).encode()
        )
        reports = [json.loads(answer) for answer in answers]
        if any(report["has_failed"] for report in reports):
            raise InvalidInput(
                "cannot write the version: at least one rank could not write its shards; read the ranks' logs",
                code="weights.rank_cannot_write",
            ) from problem
        self._send_shards(sent, views, [decode_boxes(report["boxes"]) for report in reports])

    def _write(self, shards: Mapping[str, LocalShard], views: TensorViews) -> None:
        """Writes this rank's shards directly into the staging buffer."""
        parts = {
            name: views[name].reshape(self._published.shapes[name])[shard.box.slices] for name, shard in shards.items()
        }
        self._host_copy.write({name: shard.local for name, shard in shards.items()}, parts, torch_dtype_of(self._dtype))

    def _send_shards(
        self, shards: Mapping[str, LocalShard], views: TensorViews | None, boxes: list[dict[str, Box]]
    ) -> None:
        """Sends this rank's shards to the first rank, which writes them. boxes: what each rank sends, by rank."""
        for name, shape in self._published.shapes.items():
            if views is not None:
                whole = views[name].reshape(shape)
                incoming = {rank: receive_buffer(whole, sent[name]) for rank, sent in enumerate(boxes) if name in sent}
                self._ranks.exchange(
                    {}, {rank: received.reshape(-1).view(np.uint8) for rank, received in incoming.items()}
                )
                for rank, received in incoming.items():
                    if not np.may_share_memory(received, whole):
                        whole[boxes[rank][name].slices] = received
            elif name in shards:
                bits = np.empty(shards[name].box.elements, dtype=BITS[self._dtype.size_bytes])
                self._host_copy.write({name: shards[name].local}, {name: bits}, torch_dtype_of(self._dtype))
                self._ranks.exchange({0: bits.view(np.uint8)}, {})

    def _map_views(self, file: SharedFile | None) -> TensorViews | None:
        """Returns the first rank's staging buffer, mapped into this process; None where that is impossible."""
        if file is None:
            return None
        try:
            return tensor_views(lay_out(self.published_shapes), self._map_buffer(file))
        except (InvalidInput, UnknownVersion):  # it is on another host
            return None

    def _map_buffer(self, file: SharedFile) -> Buffer:
        """Returns the mapped buffer; unmaps buffers whose file is gone."""
        self._mapped_buffers = {path: buffer for path, buffer in self._mapped_buffers.items() if Path(path).exists()}
        if file.path not in self._mapped_buffers:
            self._mapped_buffers[file.path] = map_writable(file)
        return self._mapped_buffers[file.path]

    def _broadcast_file(self, file: SharedFile | None) -> SharedFile | None:
        """Returns the first rank's `file` on every rank; encoded as JSON, because torch sends objects as pickle."""
        fields = json.loads(self._ranks.broadcast(json.dumps(asdict(file) if file is not None else None).encode()))
        return SharedFile(**fields) if fields is not None else None


def _boxes(shards: Mapping[str, LocalShard]) -> dict[str, Box]:
    return {name: shard.box for name, shard in shards.items()}
