"""SIGKILL of each rank at each point of the loop: no batch is lost or trained twice, no published bit differs."""

from pathlib import Path

import pytest

from tests.fakes.forking import FORKED
from tests.trainer.ranks.fault_points import all_faults, kills, write_faults
from tests.trainer.ranks.test_rank_kills import Trainer


@pytest.mark.anyio
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("forked_programs")
async def test_a_kill_of_any_rank_at_any_point_changes_no_published_weights(tmp_path: Path) -> None:
    faults = all_faults()
    steps = 2 * len(faults)  # a fault may come after its step and the next were acknowledged
    versions = []
    for name, planned in (("whole", []), ("killed", faults)):
        folder = tmp_path / name
        folder.mkdir()
        write_faults(folder, planned)
        trainer = Trainer(folder, steps=steps)
        trainer.prefix = (FORKED, "-m", "tests.trainer.ranks.fault_points", str(folder))
        versions.append(await trainer.run(()))
        assert kills(folder) == [fault.point for fault in planned]
        assert trainer.starts == 1 + len(planned)

    assert versions[1] == versions[0]
    assert sorted(versions[0]) == list(range(steps + 1))
