"""Positions of a checkpoint's elements in the parameters of a served model, learned by watching one load; later
versions are patched in place.

Runs in the environment of the server: torch, safetensors and the standard library only.

The loaders of SGLang and vLLM end in `destination.copy_(source)`, where both are views: of a parameter, and of a tensor
of the checkpoint. Offsets and strides of the views say where each element of the checkpoint went, through stacked
projections (qkv, gate and up), slices of tensor parallelism and another dtype, which `copy_` converts by element.
A checkpoint tensor whose elements were transformed on the way (quantisation, transposition into a new tensor) cannot be
patched. Of a model that is split over several ranks, each rank sees its part only, so each writes the views that it has
copied into a file beside the weights: a tensor can be patched if the views of all ranks together are the whole tensor.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import torch
from safetensors.torch import load_file

_View = tuple[tuple[int, ...], ...]
"""Offset, strides and sizes of a view of a checkpoint tensor, without dimensions that add no element."""


class CannotPatch(ValueError):
    """The changes do not map to served parameters; load the whole version."""


@dataclass(frozen=True)
class _Copy:
    """One observed copy: a view of a parameter took a view of a checkpoint tensor."""

    destination: torch.Tensor
    offset: int
    """First element of the source view in the checkpoint tensor."""
    stride: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def view(self) -> _View:
        """View of the checkpoint tensor; copies of one view into several parameters have equal ones."""
        moves = [(step, size) for step, size in zip(self.stride, self.shape, strict=True) if step and size != 1]
        return ((self.offset,), tuple(step for step, _ in moves), tuple(size for _, size in moves))

    def patch(self, positions: torch.Tensor, values: torch.Tensor) -> int:
        """Writes the values whose positions are in this view; returns their number.

        positions: int64 `[n]`, flat in the checkpoint tensor, sorted. values: `[n]`.
        """
        values = values.to(self.destination.dtype)
        if self._is_contiguous:
            first, last = self.offset, self.offset + math.prod(self.shape)
            begin, end = torch.searchsorted(positions, torch.tensor([first, last])).tolist()
            if begin == end:
                return 0
            # Both views are contiguous: one write, at the positions themselves if the view begins with the tensor.
            inner = positions[begin:end]
            index = inner - first if first else inner
            self.destination.view(-1).index_copy_(
                0,
                index.to(self.destination.device, non_blocking=True),
                values[begin:end].to(self.destination.device, non_blocking=True),
            )
            return end - begin
        rest = positions - self.offset
        inside = rest >= 0
        index = torch.full_like(positions, self.destination.storage_offset())
        for size, stride, target in zip(self.shape, self.stride, self.destination.stride(), strict=True):
            if stride == 0:
                continue
            at = torch.div(rest, stride, rounding_mode="floor")
            inside &= (at >= 0) & (at < size)
            index += at * target
            rest = rest - at * stride
        inside &= rest == 0
        storage = self.destination.untyped_storage()
        flat = torch.empty(0, dtype=self.destination.dtype, device=self.destination.device).set_(
            storage, 0, (storage.nbytes() // self.destination.element_size(),), (1,)
        )
        flat.index_copy_(0, index[inside].to(flat.device), values[inside].to(flat.device))
        return int(inside.sum())

    @property
    def _is_contiguous(self) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return self.destination.is_contiguous()


class WeightMapping:
    """Copies of each checkpoint tensor, of the last complete load."""

    def __init__(self) -> None:
        self._copies: dict[str, list[_Copy]] = {}
        self._transformed: set[str] = set()
        self._elements: dict[str, int] = {}
        self._rank_file = f"mapping-{uuid4().hex}.json"
        self._folder = Path()
        self._complete: set[str] | None = None
        """Tensors that all ranks together hold; None until the other ranks have loaded."""

    def load(
        self, path: str, load_weights: Callable[[list[tuple[str, torch.Tensor]]], object], *, is_sharded: bool = False
    ) -> None:
        """Loads a safetensors file with the model's own loader and learns the weight mapping.

        is_sharded: True if this rank holds a part of the model only.
        """
        tensors = load_file(path)
        owner = {tensor.untyped_storage().data_ptr(): name for name, tensor in tensors.items()}
        copies_by_name: dict[str, list[_Copy]] = {}
        transformed: set[str] = set()
        original = torch.Tensor.copy_

        def watched(destination: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
            name = owner.get(source.untyped_storage().data_ptr()) if source.untyped_storage().nbytes() else None
            if name is not None:
                if destination.shape == source.shape:
                    offset = source.storage_offset() - tensors[name].storage_offset()
                    copies_by_name.setdefault(name, []).append(
                        _Copy(destination.detach(), offset, tuple(source.stride()), tuple(source.shape))
                    )
                else:
                    transformed.add(name)
            return original(destination, source, non_blocking)

        torch.Tensor.copy_ = watched
        try:
            load_weights(list(tensors.items()))
        finally:
            torch.Tensor.copy_ = original
        self._copies, self._transformed = copies_by_name, transformed
        self._elements = {name: tensor.numel() for name, tensor in tensors.items()}
        views = {name: {copy.view for copy in copies} for name, copies in copies_by_name.items()}
        self._complete = None if is_sharded else self._tensors_of(views)
        self._folder = Path(path).parent
        if is_sharded:
            content = json.dumps({name: sorted(parts) for name, parts in views.items()})
            partial = self._folder / f".{self._rank_file}"
            partial.write_text(content)
            partial.replace(self._folder / self._rank_file)

    def patch(self, path: str) -> int:
        """Writes the changes of a patch file; returns the number of elements.

        Raises: CannotPatch before this rank has written anything when some element of a changed tensor has no
        placement in any rank.
        """
        if not self._copies:
            raise CannotPatch("cannot patch: no weight mapping is known; load a whole version first")
        changes = load_file(path)
        names = [name.removesuffix(".positions") for name in changes if name.endswith(".positions")]
        complete = self._tensors_of(self._views_of_all_ranks()) if self._complete is None else self._complete
        for name in names:
            if name in self._transformed or name not in complete:
                raise CannotPatch(f"cannot patch tensor {name!r}: it is not copied unchanged into the model")
        self._complete = complete
        written = 0
        for name in names:
            positions, values = changes[f"{name}.positions"], changes[f"{name}.values"]
            written += sum(copy.patch(positions, values) for copy in self._copies.get(name, ()))
        return written

    def _views_of_all_ranks(self) -> dict[str, set[_View]]:
        views: dict[str, set[_View]] = {}
        for file in self._folder.glob("mapping-*.json"):
            for name, parts in json.loads(file.read_text()).items():
                views.setdefault(name, set()).update(tuple(tuple(numbers) for numbers in part) for part in parts)
        return views

    def _tensors_of(self, views: dict[str, set[_View]]) -> set[str]:
        """Returns the tensors that consist of these views. Distinct views of a loader do not overlap."""
        held = {name: sum(math.prod(sizes) for _, _, sizes in parts) for name, parts in views.items()}
        return {name for name, elements in held.items() if elements == self._elements[name]}
