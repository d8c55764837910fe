import json
import subprocess
import sys
from pathlib import Path

import pytest

from astraflow import recipe as module
from astraflow.contract.errors import InvalidInput, UnknownPolicy
from astraflow.recipe import (
    dataflow_config,
    find_recipe,
    load_recipe,
    node_config,
    packaged_recipes,
    snapshot,
    summary_of,
    trainer_config,
    weights_config,
)

OVERLAY = 'extends = "smoke"\nname = "mine"\n'


def write(folder: Path, text: str, name: str = "mine.toml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


@pytest.mark.parametrize("name", packaged_recipes())
def test_every_packaged_recipe_loads_with_its_plugins_checked(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.summary == summary_of(find_recipe(name)) != ""


def test_looking_at_a_recipe_first_imports_nothing_heavy() -> None:
    code = (
        "import sys; from astraflow.recipe import Check, load_recipe\n"
        "for name in ('smoke', 'smoke/two_policies', 'reverse'): load_recipe(name, check=Check.LIGHT)\n"
        "print('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def test_an_overlay_states_only_the_difference() -> None:
    base, sort = load_recipe("reverse"), load_recipe("reverse/sort")
    assert sort.name == "sort"
    assert sort.flows["train"].dataset == {**base.flows["train"].dataset, "operation": "sort", "alphabet": "0123456789"}
    assert sort.flows["train"].workflow == base.flows["train"].workflow


def test_a_path_extends_a_packaged_recipe_and_a_file_beside_it(tmp_path: Path) -> None:
    write(tmp_path, OVERLAY + "seed = 3\n[nodes]\ncount = 5\n", "base.toml")
    recipe = load_recipe(str(write(tmp_path, 'extends = "base.toml"\nseed = 4\n')))
    assert (recipe.seed, recipe.nodes.count, recipe.policies["solver"].batch_groups) == (4, 5, 4)


def test_a_folder_with_a_recipe_is_a_recipe(tmp_path: Path) -> None:
    write(tmp_path, OVERLAY, "recipe.toml")
    assert load_recipe(str(tmp_path)).name == "mine"


def test_recipes_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    write(tmp_path, 'extends = "b.toml"\n', "a.toml")
    write(tmp_path, 'extends = "a.toml"\n', "b.toml")
    with pytest.raises(InvalidInput, match=r"in a circle: .*a\.toml extends .*b\.toml extends .*a\.toml"):
        load_recipe(str(tmp_path / "a.toml"))


def test_an_unknown_key_is_answered_with_the_nearest_one_and_its_file(tmp_path: Path) -> None:
    file = write(tmp_path, OVERLAY + "[policies.solver]\nbatch_group = 3\n")
    with pytest.raises(InvalidInput) as refused:
        load_recipe(str(file))
    assert str(refused.value) == f"{file}: policies.solver.batch_group: unknown key; did you mean 'batch_groups'?"


def test_a_mistake_in_the_base_is_blamed_on_the_base(tmp_path: Path) -> None:
    base = write(tmp_path, OVERLAY + "[stop]\nstep = 3\n", "base.toml")
    top = write(tmp_path, 'extends = "base.toml"\nseed = 1\n')
    with pytest.raises(InvalidInput, match=rf"^{base}: stop\.step: unknown key; did you mean 'steps'"):
        load_recipe(str(top))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("flows.train.workflow.max_new=3", r"^--set: flows\.train\.workflow: .*did you mean 'max_new_tokens'"),
        ("flows.train.dataset.kind=script", r"^--set: flows\.train\.dataset: no dataset is called 'script'"),
        (
            "flows.train.filters=[{kind='informativ'}]",
            r"^--set: flows\.train\.filters\.0: .*did you mean 'informative'",
        ),
        ("policies.solver.sampler={kind='fresh', order='x'}", r"^--set: policies\.solver\.sampler: "),
        ("policies.solver.backend.step=3", r"^--set: policies\.solver\.backend: .*unknown key"),
        (
            "policies.solver.algorithm.los={kind='ppo'}",
            r"^--set: policies\.solver\.algorithm\.los: .*did you mean 'loss'",
        ),
        ("nodes.engine.token=1", r"^--set: nodes\.engine: .*did you mean 'tokens'"),
        ("weights.keep_version=4", r"^--set: weights\.keep_version: .*did you mean 'keep_versions'"),
        ("weights.keep_in.kind=s4", r"^--set: weights\.keep_in: no keep is called 's4'; known: disk, memory, s3"),
        ("weights.keep_in={kind='s3'}", r"^--set: weights\.keep_in: .*bucket: missing"),
        ("dataflow.lease=4", r"^--set: dataflow\.lease: .*did you mean 'lease_s'"),
        ("dataflow.engine={}", r"^--set: dataflow\.engine: follows from the rest"),
        ("trainer.keep_checkpoint=4", r"^--set: trainer\.keep_checkpoint: .*did you mean 'keep_checkpoints'"),
        ("stop.reward=high", r"^--set: stop\.reward: .*valid number.* \(found 'high'\)"),
        (
            "flows.train.workflow.policy=judge",
            r"talks to the policy 'judge', which the recipe does not have; known: solver",
        ),
        ("evaluations.progress.sample=2", r"^--set: evaluations\.progress\.sample: .*did you mean 'samples'"),
        ("evaluations.progress.share=2", r"^--set: evaluations\.progress\.share: .*less than or equal to 1"),
        (
            "evaluations.progress.reward.kind=exact",
            r"^--set: evaluations\.progress\.reward: no reward is called 'exact'",
        ),
        (
            "evaluations.progress.workflow.policy=judge",
            r"evaluations\.progress\.workflow: talks to the policy 'judge', which the recipe does not have",
        ),
        (
            "evaluations.train={dataset={kind='scripted'}, workflow={kind='single_turn'}, reward={kind='exact_match'}}",
            r"^--set: evaluations\.train: a flow has this name; choose another",
        ),
        ("policies.solver.model.kind=script", r"^--set: policies\.solver\.model: .*did you mean 'scripted'"),
    ],
)
def test_a_wrong_value_is_refused_where_it_stands(override: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        load_recipe("smoke", [override])


def test_an_override_changes_one_value() -> None:
    recipe = load_recipe("smoke", ["nodes.count=7", "policies.solver.backend.step_s=0.5"])
    assert recipe.nodes.count == 7
    assert recipe.policies["solver"].backend == {"kind": "scripted", "step_s": 0.5}


def test_broken_toml_is_shown_with_its_place(tmp_path: Path) -> None:
    file = write(tmp_path, 'extends = "smoke"\nseed = = 3\n')
    with pytest.raises(InvalidInput, match=rf"^{file}, line 2, column 8: "):
        load_recipe(str(file))


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("revers", r"no recipe is called 'revers'; did you mean 'reverse'\?"),
        ("nowhere/at/all.toml", "there is no recipe file nowhere/at/all.toml"),
    ],
)
def test_a_recipe_that_is_not_there_is_named(place: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        load_recipe(place)


def test_a_base_that_is_not_there_is_blamed_on_the_file_that_wants_it(tmp_path: Path) -> None:
    file = write(tmp_path, 'extends = "smok"\n')
    with pytest.raises(InvalidInput, match=rf"^{file}: extends: no recipe is called 'smok'; did you mean 'smoke'"):
        load_recipe(str(file))


def test_a_snapshot_is_the_whole_recipe(tmp_path: Path) -> None:
    recipe = load_recipe("smoke/two_policies", ["nodes.hardware=a shelf"])
    text = snapshot(recipe)
    again = load_recipe(str(write(tmp_path, text, "recipe.json")))
    assert snapshot(again) == text
    assert json.loads(text)["nodes"]["hardware"] == "a shelf"
    assert "extends" not in json.loads(text)


def test_each_role_is_told_its_own_part() -> None:
    recipe = load_recipe(
        "smoke/two_policies", ["dataflow.history=5", "trainer.keep_checkpoints=3", "weights.keep_versions=9"]
    )
    dataflow = dataflow_config(recipe, run="evening")
    assert (dataflow.run, dataflow.history, set(dataflow.streams)) == ("evening", 5, {"solver", "verifier"})
    assert dataflow.models == {"solver": {"kind": "scripted"}, "verifier": {"kind": "scripted"}}
    assert dataflow.engine == recipe.nodes.engine
    assert dataflow.evaluations == recipe.evaluations
    assert dataflow.evaluations["progress"].workflow["kind"] == "solve_and_verify"
    trainer = trainer_config(recipe, "verifier")
    assert (trainer.policy, trainer.keep_checkpoints, trainer.backend) == (
        "verifier",
        3,
        {"kind": "scripted", "step_s": 0.05},
    )
    assert weights_config(recipe).keep_versions == 9
    node = node_config(recipe, name="node-1")
    assert (node.name, node.capacity, node.engine) == ("node-1", 32, None)


def test_a_policy_the_recipe_does_not_have_is_named() -> None:
    with pytest.raises(UnknownPolicy, match="has no policy 'solvr'; did you mean 'solver'"):
        trainer_config(load_recipe("smoke"), "solvr")


def test_packaged_recipes_have_a_readme_of_one_screen() -> None:
    folders = {find_recipe(name).parent for name in packaged_recipes()}
    assert all(0 < len((folder / "README.md").read_text().splitlines()) <= 50 for folder in folders)
    assert all(folder.parent == module.PACKAGED for folder in folders)
