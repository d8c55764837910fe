"""Each rank writes what it holds of a published tensor, however a joined parameter is divided over the ranks."""

import pytest
import torch
from torch import Tensor

from astraflow.contract.errors import InvalidInput
from astraflow.contract.weights import Dtype
from astraflow.models.published import PublishedPart
from astraflow.trainer.backends.publishing import published_shards
from astraflow.trainer.backends.publishing.published_shards import PublishedShards
from astraflow.trainer.backends.shards import Box, LocalShard
from tests.errors import raises_code

NAME = "experts.gate_up"
WHOLE = torch.arange(3 * 4 * 5).view(3, 4, 5)
PARTS = tuple(
    PublishedPart(name=f"{expert}.{kind}", shape=(2, 5), offset=(expert * 4 + 2 * index) * 5)
    for expert in range(3)
    for index, kind in enumerate(("gate", "up"))
)
BOXES = {
    "whole": [((0, 0, 0), (3, 4, 5))],
    "by expert": [((0, 0, 0), (2, 4, 5)), ((2, 0, 0), (1, 4, 5))],
    "by row": [((0, 0, 0), (3, 3, 5)), ((0, 3, 0), (3, 1, 5))],
    "by column": [((0, 0, 0), (3, 4, 2)), ((0, 0, 2), (3, 4, 3))],
}


def written(box: Box, monkeypatch: pytest.MonkeyPatch) -> dict[str, LocalShard]:
    """Returns what a rank writes that holds this box of the parameter."""
    shard = LocalShard(local=WHOLE[box.slices].clone(), box=box)
    monkeypatch.setattr(published_shards, "local_shards", lambda *_, **__: {NAME: shard})
    return PublishedShards({NAME: WHOLE}, {NAME: PARTS}, Dtype.BFLOAT16).local(is_first=True)


@pytest.mark.parametrize("division", BOXES)
def test_the_ranks_write_every_element_once(division: str, monkeypatch: pytest.MonkeyPatch) -> None:
    targets: dict[str, Tensor] = {part.name: torch.full(part.shape, -1) for part in PARTS}
    for offsets, shape in BOXES[division]:
        for name, shard in written(Box(offsets=offsets, shape=shape), monkeypatch).items():
            target = targets[name][shard.box.slices]
            assert bool((target == -1).all())
            target.copy_(shard.local)

    assert all(torch.equal(targets[part.name], part.of(WHOLE)) for part in PARTS)


def test_a_whole_parameter_is_written_under_its_published_name() -> None:
    parts = {NAME: (PublishedPart(name="renamed", shape=(3, 4, 5)),)}
    shards = PublishedShards({NAME: WHOLE, "norm": torch.ones(2)}, parts, Dtype.BFLOAT16)

    assert shards.tensor_shapes == {"renamed": (Dtype.BFLOAT16, (3, 4, 5)), "norm": (Dtype.BFLOAT16, (2,))}
    assert torch.equal(shards.local(is_first=True)["renamed"].local, WHOLE)


def test_a_part_across_experts_is_refused() -> None:
    odd = PublishedPart(name="odd", shape=(3, 5), offset=10)
    shards = PublishedShards({NAME: WHOLE}, {NAME: (odd,)}, Dtype.BFLOAT16)

    with raises_code(InvalidInput, "model.unsupported_weights", "odd"):
        shards.local(is_first=True)
