"""Models that commands take from a run."""

from pathlib import Path

import pytest

from astraflow.cli.models.sources import CheckpointSource
from astraflow.contract.errors import InvalidInput
from astraflow.runtime.folders.run_folders import RECIPE, RunFolder


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"flows": []}', "[" * 100_000], ids=["empty", "list", "cut", "other", "deep"]
)
def test_a_damaged_recipe_of_a_run_is_an_error_that_names_it(tmp_path: Path, content: str) -> None:
    (tmp_path / RECIPE).write_text(content)
    source = CheckpointSource(folder=tmp_path, policy="solver", run=RunFolder(tmp_path))
    with pytest.raises(InvalidInput) as refused:
        source.workflow_options()
    assert RECIPE in str(refused.value)
