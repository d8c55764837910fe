"""From a batch to tensors: prompts shared within a group, rows packed beside each other, cut into micro-batches."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from astraflow.contract.batches import Batch, Row
from astraflow.contract.errors import InvalidInput
from astraflow.contract.spans import Author
from astraflow.contract.trajectories import Int32Array, Trajectory

_STEM = 0
"""Number of the piece that all others of a pack may look at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingLimits:
    """How much goes together."""

    pack_tokens: int
    """Of one pack with a shared stem: its attention mask is dense, the square of this. Longer rows stand alone."""
    micro_batch_tokens: int
    """Of one micro-batch, padding included, except that one pack always fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """What goes through the model at once, `[packs, width]`, and the tokens it is trained on, `[tokens]`.

    A pack is a stem (the prompt that the members of a group share) followed by what each of them has of its own, its
    pieces. A token sees its stem and what stands before it in its piece, so each trajectory is computed as if it stood
    alone, and the prompt is computed once instead of once for each member.
    """

    input_ids: Tensor
    """int64 `[packs, width]`; padding is 0."""
    position_ids: Tensor
    """int64 `[packs, width]`: place in its own trajectory."""
    pieces: Tensor | None
    """int16 `[packs, width]`: number of the piece, 0 for the stem, -1 for padding; None when no pack shares a stem, so
    that plain causal attention is right."""
    sources: Tensor
    """int64 `[tokens]`: where, in the flattened `[packs * width]`, each token is predicted: at the one before it."""
    targets: Tensor
    """int64 `[tokens]`."""
    behaviour: Tensor
    """float32 `[tokens]`: logprobs recorded when they were written."""
    owners: Tensor
    """int64 `[tokens]`: the row of the batch each belongs to."""
    versions: Tensor
    """int64 `[tokens]`: the version that wrote each."""

    def attention_mask(self) -> Tensor | None:
        """bool `[packs, 1, width, width]`, True where a token may look; None is causal."""
        if self.pieces is None:
            return None
        width = self.pieces.shape[1]
        is_before = torch.ones(width, width, dtype=torch.bool, device=self.pieces.device).tril()
        is_same = self.pieces[:, :, None] == self.pieces[:, None, :]
        return (is_before & (is_same | (self.pieces == _STEM)[:, None, :]))[:, None]

    def to(self, device: torch.device) -> "MicroBatch":
        """A copy on `device`."""
        return MicroBatch(
            input_ids=self.input_ids.to(device),
            position_ids=self.position_ids.to(device),
            pieces=None if self.pieces is None else self.pieces.to(device),
            sources=self.sources.to(device),
            targets=self.targets.to(device),
            behaviour=self.behaviour.to(device),
            owners=self.owners.to(device),
            versions=self.versions.to(device),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Collated:
    """A whole batch. Row i of the batch is trajectory i here."""

    micro_batches: tuple[MicroBatch, ...]
    rewards: Tensor
    """float32 `[rows]`."""
    groups: Tensor
    """int64 `[rows]`, numbered from 0."""
    lengths: Tensor
    """int64 `[rows]`: model-written tokens."""
    is_truncated: Tensor
    """bool `[rows]`."""


def collate(batch: Batch, limits: PackingLimits, *, is_left_out: Sequence[bool] | None = None) -> Collated:
    """Put a batch into tensors. Rows without model-written tokens, and those left out, are in no micro-batch.

    Raises: InvalidInput when a model-written token has nothing before it: nothing could have predicted it.
    """
    trajectories = [row.trajectory for row in batch.rows]
    wanted = [
        number
        for number, trajectory in enumerate(trajectories)
        if trajectory.model_tokens and not (is_left_out is not None and is_left_out[number])
    ]
    packs = [pack for numbers in _by_group(batch.rows, wanted) for pack in _packs(trajectories, numbers, limits)]
    return Collated(
        micro_batches=tuple(_micro_batch(trajectories, part) for part in _portions(packs, limits.micro_batch_tokens)),
        rewards=torch.tensor([trajectory.reward for trajectory in trajectories], dtype=torch.float32),
        groups=_numbered([row.group for row in batch.rows]),
        lengths=torch.tensor([trajectory.model_tokens for trajectory in trajectories], dtype=torch.int64),
        is_truncated=torch.tensor([trajectory.is_truncated for trajectory in trajectories], dtype=torch.bool),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pack:
    """Rows whose first `stem` tokens are equal."""

    numbers: tuple[int, ...]
    stem: int
    width: int


def _numbered(names: Sequence[str]) -> Tensor:
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(name, len(numbers)) for name in names], dtype=torch.int64)


def _by_group(rows: Sequence[Row], wanted: Iterable[int]) -> list[list[int]]:
    groups: dict[str, list[int]] = {}
    for number in wanted:
        groups.setdefault(rows[number].group, []).append(number)
    return list(groups.values())


def _packs(trajectories: Sequence[Trajectory], numbers: list[int], limits: PackingLimits) -> Iterator[_Pack]:
    """Put the rows of one group beside each other as far as the limit allows. The last token of a row is predicted, but
    predicts nothing, so it needs no place."""
    stem = _common_prefix([trajectories[number] for number in numbers])
    members: list[int] = []
    width = stem
    for number in numbers:
        own = len(trajectories[number].tokens) - 1 - stem
        if members and (width + own > limits.pack_tokens or stem == 0):
            yield _pack(members, stem, width)
            members, width = [], stem
        members.append(number)
        width += own
    yield _pack(members, stem, width)


def _pack(members: list[int], stem: int, width: int) -> _Pack:
    return _Pack(numbers=tuple(members), stem=stem if len(members) > 1 else 0, width=width)


def _common_prefix(trajectories: Sequence[Trajectory]) -> int:
    """How many first tokens are context and the same in all: 0 or more."""
    first = trajectories[0].tokens
    common = min(_begun(trajectory) for trajectory in trajectories)
    for trajectory in trajectories[1:]:
        differs = np.flatnonzero(trajectory.tokens[:common] != first[:common])
        common = int(differs[0]) if len(differs) else common
    return common


def _begun(trajectory: Trajectory) -> int:
    """Where the model wrote its first token. Raises: InvalidInput when nothing stands before it."""
    span = trajectory.spans[0]
    if span.author is Author.MODEL:
        raise InvalidInput(
            f"a trajectory of {trajectory.policy} begins with a token the model wrote: without any context before it, "
            "nothing predicts it; give the workflow's prompt at least one token"
        )
    begun = 0
    for span in trajectory.spans:
        if span.author is Author.MODEL:
            break
        begun += span.length
    return begun


def _portions(packs: list[_Pack], tokens: int) -> Iterator[list[_Pack]]:
    """Cut into micro-batches of at most `tokens` tokens, those of like width together, so that little is padding."""
    portion: list[_Pack] = []
    for pack in sorted(packs, key=lambda pack: -pack.width):
        if portion and (len(portion) + 1) * portion[0].width > tokens:
            yield portion
            portion = []
        portion.append(pack)
    if portion:
        yield portion


def _micro_batch(trajectories: Sequence[Trajectory], packs: list[_Pack]) -> MicroBatch:
    shape = (len(packs), max(pack.width for pack in packs))
    ids, positions = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    pieces = np.full(shape, -1, dtype=np.int16)
    learned: list[_Learned] = []
    for place, pack in enumerate(packs):
        stem = trajectories[pack.numbers[0]].tokens[: pack.stem]
        ids[place, : pack.stem], positions[place, : pack.stem] = stem, np.arange(pack.stem)
        pieces[place, : pack.stem] = _STEM
        begin = pack.stem
        for piece, number in enumerate(pack.numbers, start=1):
            trajectory = trajectories[number]
            end = begin + len(trajectory.tokens) - 1 - pack.stem
            ids[place, begin:end] = trajectory.tokens[pack.stem : -1]
            positions[place, begin:end] = np.arange(pack.stem, len(trajectory.tokens) - 1)
            pieces[place, begin:end] = piece
            learned.append(_learned(trajectory, number, row=place * shape[1], stem=pack.stem, begin=begin))
            begin = end
    shares_stems = any(pack.stem for pack in packs)
    return MicroBatch(
        input_ids=torch.from_numpy(ids),
        position_ids=torch.from_numpy(positions),
        pieces=torch.from_numpy(pieces) if shares_stems else None,
        sources=_joined([part.sources for part in learned]),
        targets=_joined([part.targets for part in learned]),
        behaviour=torch.from_numpy(np.concatenate([trajectories[part.number].logprobs for part in learned])),
        owners=_joined([np.full(len(part.sources), part.number) for part in learned]),
        versions=_joined([part.versions for part in learned]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Learned:
    """The model-written tokens of one trajectory in its pack."""

    number: int
    sources: npt.NDArray[np.int64]
    targets: Int32Array
    versions: npt.NDArray[np.int64]


def _learned(trajectory: Trajectory, number: int, *, row: int, stem: int, begin: int) -> _Learned:
    """row: where the pack's row begins in the flattened micro-batch; begin: where the trajectory's piece does in it."""
    places = np.flatnonzero(trajectory.loss_mask())
    before = places - 1
    sources = row + np.where(before < stem, before, begin + before - stem)
    written = [span for span in trajectory.spans if span.version is not None]
    versions = np.repeat([int(span.version or 0) for span in written], [span.length for span in written])
    return _Learned(number=number, sources=sources, targets=trajectory.tokens[places], versions=versions)


def _joined(parts: Sequence[npt.NDArray[np.integer]]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))
