"""A run of real processes in a network namespace with loopback only, which reads model and data from a data root."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from astraflow.models import models
from tests.datasets import tables
from tests.fakes.hub import FakeHub
from tests.system.processes import ROOT, command

RECIPE = """
extends = "reverse"
name = "offline"
policies.solver.model = { kind = "huggingface", path = "owner/letters-model" }
policies.solver.batch_groups = 4
flows.train.dataset = { kind = "huggingface", path = "owner/letters" }
evaluations.progress.every_versions = 1000
evaluations.progress.at_start = false
nodes.count = 1
"""


@pytest.mark.long
@pytest.mark.needs("root", "containers")
def test_a_run_without_a_network_reads_only_the_data_root(tmp_path: Path) -> None:
    hub, repository = FakeHub(), tmp_path / "letters"
    repository.mkdir()
    words = ("abcd", "bcda", "cabd", "dacb")
    tables.write_parquet(
        repository / "rows.parquet", [{"question": f"rev {word}=", "answer": word[::-1]} for word in words]
    )
    (repository / "README.md").write_text("---\nlicense: mit\n---\n")
    tiny = {"kind": "tiny", "hidden_size": 32, "heads": 2, "key_value_heads": 1, "intermediate_size": 64}
    hub.add("models/owner/letters-model", models.build(tiny).prepare())
    hub.add("datasets/owner/letters", repository, {"license": "mit"})
    recipe, root = tmp_path / "offline.toml", tmp_path / "root"
    recipe.write_text(RECIPE)
    environment = {**os.environ, "ASTRAFLOW_HOME": str(tmp_path / "home"), "HF_HOME": str(tmp_path / "hf")}
    with hub.serving():
        fetched = subprocess.run(
            command("fetch", str(recipe), "--to", str(root)),
            cwd=ROOT,
            env=environment | {"HF_ENDPOINT": hub.url},
            capture_output=True,
            text=True,
        )
    assert fetched.returncode == 0, fetched.stderr
    summary = tmp_path / "summary.json"
    run = command("run", str(recipe), "--headless", "--no-web", "--steps", "2", "--json", str(summary))
    alone = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]

    ended = subprocess.run(
        [*alone, *run, "--set", f"data_root={root}"], cwd=ROOT, env=environment, capture_output=True, text=True
    )

    assert summary.exists(), ended.stderr
    values = json.loads(summary.read_text())
    assert (values["steps"], values["failed"], values["balanced"]) == (2, False, True), ended.stdout
