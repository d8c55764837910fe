"""`recipes/reverse/sft.toml` as a person runs it: a run without nodes and engines, from the command line to its end."""

from pathlib import Path

import pytest

from tests.system.test_smoke_recipe import headless

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_supervised_fine_tuning_runs_to_its_end_without_nodes(tmp_path: Path) -> None:
    code, output, summary = headless("reverse/sft", tmp_path, "--no-web", "--set", "stop.steps=20")

    assert code == 0, output
    assert (summary["steps"], summary["balanced"], summary["failed"], summary["restarts"]) == (20, True, False, 0)
    assert not [path for path in (tmp_path / "run" / "logs").iterdir() if path.name.startswith("node")]
