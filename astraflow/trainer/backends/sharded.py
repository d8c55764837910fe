"""Publishing a model that is spread over the ranks of one host, shard by shard: no rank ever holds all of it."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from astraflow.contract.errors import AstraFlowError, InvalidInput, StorageFull
from astraflow.contract.weights import Dtype, SharedFile
from astraflow.models.precision import torch_dtype_of
from astraflow.trainer.backends.host_copy import HostCopy
from astraflow.trainer.backends.shards import check_placements, held_shards
from astraflow.weights.drafts import Draft, places_in
from astraflow.weights.shared import join
from astraflow.weights.tensors import Buffer, Places, TensorShapes, lay_out

_NAME_BYTES = 1024


class ShardedWeights:
    """The weights of one rank of a model under `fully_shard` (FSDP2): its own shards, and where they go.

        first rank: a draft in shared memory ─► its name to all ─► each maps it once and copies its shards to their
        places ─► all are done, or all raise ─► first rank: publishes

    Shards of any dimension may be uneven or empty; of replicas one writes. Every rank calls `snapshot` at the same
    time, between two steps.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        *,
        dtype: Dtype,
        device: torch.device,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """parameters: by `state_dict` name, tied ones once; the same on every rank. group: all ranks of the model, on
        one host; None is the default group. Raises: InvalidInput for a placement that is neither Shard nor Replicate.
        """
        self._parameters = dict(parameters)
        self._dtype = dtype
        self._device = device
        self._group = group
        self._host_copy = HostCopy(device)
        self._joined: dict[str, Buffer] = {}
        for name, parameter in self._parameters.items():
            check_placements(name, parameter)

    @property
    def published(self) -> TensorShapes:
        """The whole tensors, whatever part of them is here."""
        return {name: (self._dtype, tuple(parameter.shape)) for name, parameter in self._parameters.items()}

    @property
    def is_first(self) -> bool:
        """Whether this rank gives the draft, and publishes."""
        return dist.get_rank(self._group) == 0

    def snapshot(self, draft: Draft | None) -> None:
        """Write the weights now; collective. draft: the first rank's, in shared memory; None on the others.

        Raises, on every rank alike: StorageFull when the draft is not in shared memory; InvalidInput when a rank is on
        another host, or could not write.
        """
        if draft is None:
            self._write_together(None, None)
        else:
            with draft.writing() as places:
                self._write_together(draft.buffer.file, places)

    def _write_together(self, file: SharedFile | None, places: Places | None) -> None:
        file = self._told(file)
        if file is None:
            raise StorageFull("ranks write a version together in shared memory, which has no room for it: enlarge it")
        problem: AstraFlowError | None = None
        try:
            self._write(places_in(lay_out(self.published), self._joint(file)) if places is None else places)
        except AstraFlowError as found:
            problem = found
        if not self._all(problem is None):
            raise InvalidInput(
                "not every rank could write its shards: ranks that write one draft must be on one host; those of "
                "several hosts publish with `SpreadPublisher`"
            ) from problem

    def _write(self, places: Places) -> None:
        held = held_shards(self._parameters, is_first=self.is_first)
        parts = {
            name: places[name].reshape(tuple(self._parameters[name].shape))[shard.box.slices]
            for name, shard in held.items()
        }
        shards = {name: shard.local for name, shard in held.items()}
        self._host_copy.write(shards, parts, torch_dtype_of(self._dtype))

    def _joint(self, file: SharedFile) -> Buffer:
        """The first rank's buffer, mapped here; those that are gone are let go of."""
        self._joined = {path: buffer for path, buffer in self._joined.items() if Path(path).exists()}
        if file.path not in self._joined:
            self._joined[file.path] = join(file)
        return self._joined[file.path]

    def _told(self, file: SharedFile | None) -> SharedFile | None:
        """What the first rank says, on every rank: as JSON, since torch's own way of sending objects is pickle."""
        said = json.dumps(asdict(file) if file is not None else None).encode().ljust(_NAME_BYTES)
        message = torch.from_numpy(np.frombuffer(said, dtype=np.uint8).copy()).to(self._device)
        dist.broadcast(message, group=self._group, group_src=0)
        found = json.loads(bytes(message.tolist()))
        return SharedFile(**found) if found is not None else None

    def _all(self, is_good: bool) -> bool:
        """Whether it is so on every rank; none goes on before all have come here."""
        votes = torch.tensor([int(is_good)], device=self._device)
        dist.all_reduce(votes, op=dist.ReduceOp.MIN, group=self._group)
        return bool(votes.item())
