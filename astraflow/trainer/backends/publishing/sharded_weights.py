"""Publishing of a model sharded over ranks through one staging buffer: no rank ever gathers the model on its device."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from astraflow.contract.errors import AstraFlowError, InvalidInput, UnknownVersion
from astraflow.contract.weights import Dtype, SharedFile
from astraflow.models.published import PublishedParts
from astraflow.trainer.backends.publishing.gloo_group import GlooGroup
from astraflow.trainer.backends.publishing.host_copy import HostCopy
from astraflow.trainer.backends.publishing.published_shards import PublishedShards
from astraflow.trainer.backends.publishing.shard_exchange import decode_boxes, encode_boxes, receive_buffer
from astraflow.trainer.backends.shards import Box, LocalShard
from astraflow.weights.publish.staging_buffers import StagedVersion, tensor_views
from astraflow.weights.shared_memory import map_writable
from astraflow.weights.tensors import BITS, Buffer, TensorShapes, TensorViews, lay_out

_FAILED = -1
"""Instead of the size of a message, from a rank that could not write."""
RANK_TIMEOUT_S = 300.0
"""Default of the seconds that ranks wait for another rank before they treat it as lost."""


class ShardedWeights:
    """Weights of one rank of a model under `fully_shard` (FSDP2): its shards and their targets.

            staging buffer of the first rank ─► ranks that can map its file copy their shards into it
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
        """Collective. parameters: by `state_dict` name, tied parameters once, and kept buffers; the same on every rank.
        dtype: published type of parameters. parts: how they are published; None: whole. group: all ranks of the model;
        None is the default group.

        Raises: InvalidInput for a placement that is neither Shard nor Replicate.
        """
        self._published = PublishedShards(parameters, parts or {}, dtype)
        self._ranks = GlooGroup(group, timeout_s=rank_timeout_s)
        self._host_copy = HostCopy(device)
        self._mapped_buffers: dict[str, Buffer] = {}

    @property
    def published_shapes(self) -> TensorShapes:
        """Shapes of the whole tensors, of which this rank may hold a part."""
        return self._published.tensor_shapes

    @property
    def is_first(self) -> bool:
        """True on the rank that provides the staging buffer and publishes."""
        return self._ranks.is_first

    def snapshot(self, target: StagedVersion | SharedFile | None) -> None:
        """Writes the current weights; collective. target: the staging buffer on the first rank, its file on the others.

        Raises, on every rank alike: InvalidInput when a rank could not write; Unavailable when a rank is lost.
        """
        if isinstance(target, StagedVersion):
            with target.open_for_writing() as views:
                self._write_together(None, views)
        else:
            self._write_together(target, None)

    def _write_together(self, file: SharedFile | None, views: TensorViews | None) -> None:
        shards = self._published.local(is_first=self.is_first)
        problem: Exception | None = None
        sent: dict[str, LocalShard] = {}
        try:
            targets = self._map_views(file) if views is None else views
            if targets is None:
                sent = shards
            else:
                self._write(shards, targets)
        except (AstraFlowError, OSError) as error:
            problem = error
        payload = json.dumps(encode_boxes(_boxes(sent))).encode() if sent else b""
        sizes = self._ranks.gather_sizes(_FAILED if problem else len(payload))
        if _FAILED in sizes:
            raise InvalidInput(
                "cannot write the version: at least one rank could not write its shards; read the ranks' logs",
                code="weights.rank_cannot_write",
            ) from problem
        if any(sizes):
            answers = self._ranks.all_gather(payload)
            self._send_shards(sent, views, [decode_boxes(json.loads(answer or b"{}")) for answer in answers])

    def _write(self, shards: Mapping[str, LocalShard], views: TensorViews) -> None:
        """Writes this rank's shards directly into the staging buffer."""
        parts = {
            name: views[name].reshape(self._published.tensor_shapes[name][1])[shard.box.slices]
            for name, shard in shards.items()
        }
        self._host_copy.write({name: shard.local for name, shard in shards.items()}, parts, self._published.dtypes)

    def _send_shards(
        self, shards: Mapping[str, LocalShard], views: TensorViews | None, boxes: list[dict[str, Box]]
    ) -> None:
        """Sends this rank's shards to the first rank, which writes them. boxes: what each rank sends, by rank."""
        for name, (dtype, shape) in self._published.tensor_shapes.items():
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
                bits = np.empty(shards[name].box.elements, dtype=BITS[dtype.size_bytes])
                self._host_copy.write({name: shards[name].local}, {name: bits}, {name: dtype})
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


def _boxes(shards: Mapping[str, LocalShard]) -> dict[str, Box]:
    return {name: shard.box for name, shard in shards.items()}
