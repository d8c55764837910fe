import json
import subprocess
import sys
from pathlib import Path

import pytest

from astraflow.contract.errors import InvalidInput, UnknownPolicy
from astraflow.contract.ids import PolicyId
from astraflow.recipe.config import (
    Recipe,
    dataflow_config,
    dataflow_values,
    node_config,
    trainer_config,
    weights_config,
)
from astraflow.recipe.files import EXAMPLES, PACKAGED, find_recipe, packaged_recipes, summary_of
from astraflow.recipe.loading import Check, load_recipe, snapshot
from astraflow.runtime.plugins import PLUGINS_VARIABLE
from tests.errors import raises_code

OVERLAY = 'extends = "smoke"\nname = "mine"\n'


def write(folder: Path, text: str, name: str = "mine.toml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


@pytest.mark.parametrize("name", packaged_recipes())
def test_every_packaged_recipe_and_its_plugins_are_valid(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.summary == summary_of(find_recipe(name)) != ""


@pytest.mark.parametrize("recipe", sorted((PACKAGED / EXAMPLES).glob("*.toml")), ids=lambda file: file.stem)
def test_every_example_is_valid_with_its_plugins(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, agent = recipe.with_suffix(".py"), recipe.with_name("openai_agent.py")  # several recipes have that agent
    monkeypatch.setenv(PLUGINS_VARIABLE, str(own if own.exists() else agent))
    assert load_recipe(str(recipe)).summary == summary_of(recipe) != ""


def test_an_example_without_its_plugins_is_refused() -> None:
    path = "recipes/examples/new_task/recipe.toml"
    code = f"from astraflow.recipe.loading import Check, load_recipe; load_recipe({path!r}, check=Check.LIGHT)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "unknown kind" in ran.stderr


def test_the_light_check_of_a_recipe_imports_no_heavy_package() -> None:
    code = (
        "import sys; from astraflow.recipe.loading import Check, load_recipe\n"
        "for name in ('smoke', 'smoke/two_policies', 'reverse'): load_recipe(name, check=Check.LIGHT)\n"
        "print('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def test_the_name_of_an_adapters_base_is_reserved(tmp_path: Path) -> None:
    policy = '[policies."solver.base"]\nmodel = { kind = "scripted" }\nbackend = { kind = "scripted" }\n'
    with raises_code(InvalidInput, "recipe.reserved_policy", "mine.toml: policies.solver.base", "'solver'"):
        load_recipe(str(write(tmp_path, OVERLAY + policy)))


def test_an_extending_recipe_states_only_the_difference() -> None:
    base, sort = load_recipe("reverse"), load_recipe("reverse/sort")
    assert sort.name == "sort"
    assert sort.flows["train"].dataset == {**base.flows["train"].dataset, "operation": "sort", "alphabet": "0123456789"}
    assert sort.flows["train"].workflow == base.flows["train"].workflow


def test_a_recipe_file_can_extend_a_packaged_recipe_or_a_neighbour_file(tmp_path: Path) -> None:
    write(tmp_path, OVERLAY + "seed = 3\n[nodes]\ncount = 5\n", "base.toml")
    recipe = load_recipe(str(write(tmp_path, 'extends = "base.toml"\nseed = 4\n')))
    assert (recipe.seed, recipe.nodes.count, recipe.policies["solver"].batch_groups) == (4, 5, 4)


def test_a_folder_with_a_recipe_file_can_be_loaded(tmp_path: Path) -> None:
    write(tmp_path, OVERLAY, "recipe.toml")
    assert load_recipe(str(tmp_path)).name == "mine"


def test_recipes_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    write(tmp_path, 'extends = "b.toml"\n', "a.toml")
    write(tmp_path, 'extends = "a.toml"\n', "b.toml")
    with raises_code(InvalidInput, "recipe.circular_extends", str(tmp_path / "a.toml"), str(tmp_path / "b.toml")):
        load_recipe(str(tmp_path / "a.toml"))


def test_an_unknown_key_is_refused_with_its_file_and_the_nearest_key(tmp_path: Path) -> None:
    file = write(tmp_path, OVERLAY + "[policies.solver]\nbatch_group = 3\n")
    with raises_code(InvalidInput, "config.invalid", f"{file}: policies.solver.batch_group:", "'batch_groups'"):
        load_recipe(str(file))


def test_a_misspelled_policy_is_refused_with_the_similar_one(tmp_path: Path) -> None:
    file = write(tmp_path, OVERLAY + "[policies.solvr]\nbatch_groups = 3\n")
    with raises_code(InvalidInput, "config.invalid", f"{file}: policies.solvr.model:", "did you mean 'solver'?"):
        load_recipe(str(file))
    other = write(tmp_path, OVERLAY + "[policies.judge]\nbatch_groups = 3\n")
    with raises_code(InvalidInput, "config.invalid", "policies.judge.model: missing") as caught:
        load_recipe(str(other))
    assert "did you mean" not in str(caught.value)


def test_an_invalid_key_of_the_base_is_reported_at_the_base(tmp_path: Path) -> None:
    base = write(tmp_path, OVERLAY + "[stop]\nstep = 3\n", "base.toml")
    top = write(tmp_path, 'extends = "base.toml"\nseed = 1\n')
    with raises_code(InvalidInput, "config.invalid", f"{base}: stop.step:", "'steps'"):
        load_recipe(str(top))


@pytest.mark.parametrize(
    ("override", "code", "quoted"),
    [
        ("flows.train.workflow.max_new=3", "config.invalid", ["flows.train.workflow.max_new:", "'max_new_tokens'"]),
        ("flows.train.dataset.kind=script", "plugin.unknown_kind", ["flows.train.dataset.kind:", "'script'"]),
        (
            "flows.train.filters=[{kind='informativ'}]",
            "plugin.unknown_kind",
            ["flows.train.filters.0.kind:", "'informative'"],
        ),
        ("policies.solver.sampler={kind='fresh', order='x'}", "config.invalid", ["policies.solver.sampler.order:"]),
        ("policies.solver.backend.step=3", "config.invalid", ["policies.solver.backend.step: unknown key"]),
        ("policies.solver.algorithm.los={kind='ppo'}", "config.invalid", ["policies.solver.algorithm.los:", "'loss'"]),
        ("nodes.engine.token=1", "config.invalid", ["nodes.engine.token:", "'tokens'"]),
        ("weights.retained_version=4", "config.invalid", ["weights.retained_version:", "'retained_versions'"]),
        ("weights.storage.kind=s4", "plugin.unknown_kind", ["weights.storage.kind:", "'s4'", "disk, memory, s3"]),
        ("weights.storage={kind='s3'}", "config.invalid", ["weights.storage.bucket: missing"]),
        ("dataflow.lease=4", "config.invalid", ["dataflow.lease:", "'lease_s'"]),
        ("dataflow.engine={}", "recipe.derived_setting", ["dataflow.engine:"]),
        ("trainer.keep_checkpoint=4", "config.invalid", ["trainer.keep_checkpoint:", "'keep_checkpoints'"]),
        ("stop.reward=high", "config.invalid", ["stop.reward:", "'high'"]),
        ("flows.train.workflow.policy=judge", "recipe.undefined_policy", ["'judge'", "solver"]),
        (
            "flows.train.workflow.top_k=300",
            "recipe.truncated_sampling",
            ["flows.train.workflow:", "top_k", "256", "evaluations", "allow_truncated_sampling = true"],
        ),
        ("flows.train.workflow.json_schema='{'", "config.invalid", ["flows.train.workflow", "not JSON"]),
        ("flows.train.workflow.stop_strings=['']", "config.invalid", ["stop string"]),
        ("evaluations.progress.sample=2", "config.invalid", ["evaluations.progress.sample:", "'samples'"]),
        ("evaluations.progress.share=2", "config.invalid", ["evaluations.progress.share:", " 1 "]),
        (
            "evaluations.progress.reward.kind=exact",
            "plugin.unknown_kind",
            ["evaluations.progress.reward.kind:", "'exact'"],
        ),
        (
            "evaluations.progress.workflow.policy=judge",
            "recipe.undefined_policy",
            ["evaluations.progress.workflow:", "'judge'"],
        ),
        (
            "evaluations.train={dataset={kind='scripted'}, workflow={kind='single_turn'}, reward={kind='exact_match'}}",
            "recipe.duplicate_name",
            ["evaluations.train:"],
        ),
        ("policies.solver.model.kind=script", "plugin.unknown_kind", ["policies.solver.model.kind:", "'scripted'"]),
        ("flows.train.workflow.kind=act", "config.invalid", ["flows.train.workflow.environment: missing"]),
        (
            "flows.train.workflow={kind='tool_use', tools=[{kind='calculator'}, {kind='calculato'}]}",
            "plugin.unknown_kind",
            ["flows.train.workflow.tools.1.kind:", "'calculator'"],
        ),
        (
            "flows.train.workflow={kind='tool_use', tools=[{kind='sandbox', sandbox={kind='local', worker=1}}]}",
            "config.invalid",
            ["flows.train.workflow.tools.0.sandbox.worker:", "'workers'"],
        ),
        (
            "evaluations.progress.workflow={kind='tool_use', tools=[{kind='mcp'}]}",
            "config.invalid",
            ["evaluations.progress.workflow.tools.0:", "command or url"],
        ),
    ],
)
def test_an_invalid_value_is_refused_with_its_path(override: str, code: str, quoted: list[str]) -> None:
    with raises_code(InvalidInput, code, "--set: ", *quoted):
        load_recipe("smoke", [override])


def test_an_override_changes_one_value() -> None:
    recipe = load_recipe("smoke", ["nodes.count=7", "policies.solver.backend.step_s=0.5"])
    assert recipe.nodes.count == 7
    assert recipe.policies["solver"].backend == {"kind": "scripted", "step_s": 0.5}


def test_invalid_toml_is_reported_with_file_line_and_column(tmp_path: Path) -> None:
    file = write(tmp_path, 'extends = "smoke"\nseed = = 3\n')
    with raises_code(InvalidInput, "file.invalid", f"'{file}': line 2, column 8"):
        load_recipe(str(file))


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("revers", "recipe.unknown"),
        ("nowhere/at/all.toml", "recipe.file_not_found"),
    ],
)
def test_a_missing_recipe_is_refused(source: str, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        load_recipe(source)
    assert caught.value.code == code


def test_a_missing_base_is_reported_at_the_extending_file(tmp_path: Path) -> None:
    file = write(tmp_path, 'extends = "smok"\n')
    with raises_code(InvalidInput, "recipe.unknown", f"{file}: extends:", "'smok'", "'smoke'"):
        load_recipe(str(file))


def test_a_snapshot_contains_the_whole_recipe(tmp_path: Path) -> None:
    recipe = load_recipe("smoke/two_policies", ["nodes.hardware=a shelf"])
    text = snapshot(recipe)
    again = load_recipe(str(write(tmp_path, text, "recipe.json")))
    assert snapshot(again) == text
    assert json.loads(text)["nodes"]["hardware"] == "a shelf"
    assert "extends" not in json.loads(text)


def test_each_role_receives_its_part_of_the_recipe() -> None:
    recipe = load_recipe(
        "smoke/two_policies", ["dataflow.history=5", "trainer.keep_checkpoints=3", "weights.retained_versions=9"]
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
    assert weights_config(recipe).retained_versions == 9
    node = node_config(recipe, name="node-1")
    assert (node.name, node.capacity, node.engine) == ("node-1", 32, None)


def test_dataflow_gets_the_engines_of_policies_and_partial_nodes_their_policies() -> None:
    engine = "nodes.engines={verifier={kind='scripted', swap_s=0.5}}"
    recipe = load_recipe("smoke/two_policies", [engine, "nodes.policies=['solver']"])
    node = node_config(recipe, name="node-1")

    assert dataflow_config(recipe, run="evening").engines == {"verifier": {"kind": "scripted", "swap_s": 0.5}}
    assert (node.policies, node.engines) == (("solver",), {}), "dataflow sends the engines"


@pytest.mark.parametrize(
    ("override", "code"),
    [
        ("nodes.policies=['solvr']", "recipe.undefined_policy"),
        ("nodes.engines={solvr={kind='scripted'}}", "recipe.undefined_policy"),
        ("nodes.engines={solver={kind='scriptd'}}", "plugin.unknown_kind"),
    ],
)
def test_engines_and_policies_of_nodes_are_checked(override: str, code: str) -> None:
    with raises_code(InvalidInput, code, "nodes."):
        load_recipe("smoke/two_policies", [override])


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with raises_code(UnknownPolicy, "recipe.unknown_policy", "'solvr'", "'solver'"):
        trainer_config(load_recipe("smoke"), "solvr")


def test_packaged_recipes_have_a_readme_of_one_screen_or_a_page() -> None:
    folders = {find_recipe(name).parent for name in packaged_recipes()}
    assert all(folder.parent == PACKAGED for folder in folders)
    for folder in folders:
        readme, page = folder / "README.md", PACKAGED.parent / "docs/recipes" / f"{folder.name}.md"
        assert page.is_file() or 0 < len(readme.read_text().splitlines()) <= 50, folder.name


def test_training_may_filter_samples_where_kept_sets_are_recorded() -> None:
    options = ["min_p=0.1", "top_k=5", "top_p=0.5", "seed=3", "stop_strings=['x']", "json_schema='{}'"]
    filtered = [f"{table}.workflow.{option}" for option in options for table in ("evaluations.progress", "flows.train")]
    recipe = load_recipe("reverse", filtered)
    assert recipe.evaluations["progress"].workflow["top_k"] == recipe.flows["train"].workflow["top_k"] == 5
    allowed = ["flows.train.workflow.top_k=300", "flows.train.workflow.allow_truncated_sampling=true"]
    assert load_recipe("reverse", allowed).flows["train"].workflow["top_k"] == 300


def test_a_teacher_behind_a_server_cannot_score_filtered_samples() -> None:
    algorithm = "policies.solver.algorithm"
    endpoint = "{base_url = 'http://127.0.0.1:9', model = 'teacher'}"
    taught = [
        f"{algorithm}.teachers.large.endpoint={endpoint}",
        f"{algorithm}.token_advantages=[{{kind = 'distillation'}}]",
        f"{algorithm}.loss={{kind = 'reinforce'}}",
    ]
    load_recipe("smoke", taught)
    with raises_code(InvalidInput, "algorithm.teacher_filtered", "top_p", "'train'"):
        load_recipe("smoke", [*taught, "flows.train.workflow.top_p=0.9"])


def test_a_loss_that_reads_a_teachers_distribution_refuses_filtered_samples() -> None:
    algorithm = "policies.solver.algorithm"
    taught = [f"{algorithm}.teachers.small.model={{kind = 'tiny'}}", f"{algorithm}.loss={{kind = 'distillation'}}"]
    load_recipe("smoke", taught)
    with raises_code(InvalidInput, "algorithm.teacher_filtered", "top_k", "'train'"):
        load_recipe("smoke", [*taught, "flows.train.workflow.top_k=5"])


def test_a_policy_that_teaches_itself_needs_another_prompt() -> None:
    algorithm = "policies.solver.algorithm"
    taught = [f"{algorithm}.teachers.self={{policy = 'initial'}}", f"{algorithm}.loss={{kind = 'distillation'}}"]
    with raises_code(InvalidInput, "algorithm.no_teacher_question", "'train'"):
        load_recipe("reverse", taught)
    recipe = load_recipe("reverse", [*taught, "flows.train.workflow.teacher_question='{question}{answer}'"])
    assert recipe.policies["solver"].algorithm.teachers["self"].policy == "initial"


def test_teachers_that_a_field_chooses_are_told_to_nodes() -> None:
    choice = dataflow_values(load_recipe("reverse/distill_two"))["teachers"]
    assert choice == {"solver": {"field": "part", "names": ("reverse", "sort")}}


@pytest.mark.parametrize("teacher", ["{}", "{policy = 'current', model = {kind = 'tiny'}}", "{policy = 'older'}"])
def test_a_teacher_is_a_model_a_server_or_the_policy(teacher: str) -> None:
    with raises_code(InvalidInput, "config.invalid"):
        load_recipe("reverse", [f"policies.solver.algorithm.teachers.one={teacher}"])


def test_incompatible_parts_of_an_algorithm_are_refused_with_their_key() -> None:
    algorithm = "policies.solver.algorithm"
    with raises_code(InvalidInput, "algorithm.ratio_in_anchor", algorithm, "'tis'"):
        load_recipe("smoke", [f"{algorithm}.loss={{kind = 'ppo', corrections = [{{kind = 'tis'}}]}}"])
    with raises_code(InvalidInput, "algorithm.critic_and_gae", algorithm):
        load_recipe("smoke", [f"{algorithm}.token_advantages=[{{kind = 'gae'}}]"])
    with raises_code(InvalidInput, "plugin.unknown_kind", f"{algorithm}.token_advantages.0"):
        load_recipe("smoke", [f"{algorithm}.token_advantages=[{{kind = 'gaee'}}]"])
    with raises_code(InvalidInput, "config.invalid", f"{algorithm}.critic.loss"):
        load_recipe("smoke", [f"{algorithm}.critic={{loss = {{kind = 'critic', clip = 1}}}}"])


def test_a_policy_with_several_roles_compares_its_trajectories_by_role() -> None:
    one_policy = ["flows.train.workflow={kind = 'solve_and_verify', solver = 'solver', verifier = 'solver'}"]
    by_role = [*one_policy, "policies.solver.algorithm.advantages=[{kind = 'group_relative', per_slot = true}]"]
    with raises_code(InvalidInput, "algorithm.roles_mixed", "solver, verifier"):
        load_recipe("smoke", one_policy)
    assert load_recipe("smoke", by_role).policies["solver"].algorithm.advantages[0]["per_slot"]


@pytest.mark.parametrize("check", [Check.LIGHT, Check.ALL])
def test_flow_and_algorithm_must_have_the_same_temperature(check: Check) -> None:
    with raises_code(InvalidInput, "algorithm.temperature", "'train'"):
        load_recipe("smoke", ["flows.train.workflow.temperature=0.7"], check=check)
    matching = ["flows.train.workflow.temperature=0.7", "policies.solver.algorithm.temperature=0.7"]
    assert load_recipe("smoke", matching).policies["solver"].algorithm.temperature == 0.7


CONVERSATION = "flows.train.workflow={kind='multi_turn'}"
ONE = "flows.train.group_size=1"


@pytest.mark.parametrize("workflow", [[], [CONVERSATION]], ids=["one turn", "several turns"])
@pytest.mark.parametrize("check", [Check.LIGHT, Check.ALL])
def test_groups_of_one_without_another_baseline_are_refused(workflow: list[str], check: Check) -> None:
    with raises_code(InvalidInput, "recipe.groups_of_one", "flows.train.group_size", "'batch_whitened'"):
        load_recipe("reverse", [ONE, *workflow], check=check)


@pytest.mark.parametrize(
    "changes",
    [
        ["policies.solver.algorithm.advantages=[{kind='batch_whitened'}]"],
        [
            "flows.train.workflow={kind='solve_and_verify', solver='solver', verifier='solver'}",
            "policies.solver.algorithm.advantages=[{kind='group_relative', per_slot=true}]",
        ],
    ],
    ids=["a baseline of the batch", "several trajectories"],
)
def test_groups_of_one_with_something_to_compare_are_valid(changes: list[str]) -> None:
    assert load_recipe("smoke", [ONE, *changes], check=Check.LIGHT).flows["train"].group_size == 1


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ("flows.train.group_size = 2", "recipe.answers_per_prompt"),
        ('policies.solver.algorithm.loss.kind = "ppo"', "recipe.answers_and_loss"),
        ('policies.solver.algorithm.loss.kind = "dpo"', "recipe.answers_and_loss"),
        ('flows.train.workflow.rejected_field = "worse"', "recipe.answers_per_prompt"),
    ],
)
def test_a_flow_of_answers_that_its_loss_cannot_use_is_refused(changed: str, code: str) -> None:
    with raises_code(InvalidInput, code):
        load_recipe("reverse/sft", [changed.replace(" = ", "=")])


def test_pairs_of_answers_are_trained_by_a_preference_loss() -> None:
    recipe = load_recipe(
        "reverse/sft",
        [
            "flows.train.group_size=2",
            "flows.train.workflow.rejected_field=worse",
            "policies.solver.algorithm.loss.kind=dpo",
        ],
    )
    assert recipe.nodes.count == 0


JUDGED = (
    OVERLAY
    + """
[policies.grader]
model = { kind = "scripted" }
backend = { kind = "scripted" }
is_trained = false

[flows.train.reward]
kind = "llm_judge"
policy = "grader"
"""
)


def test_an_untrained_policy_has_a_model_but_no_stream_and_a_trainer_without_steps(tmp_path: Path) -> None:
    recipe = load_recipe(str(write(tmp_path, JUDGED)))
    config = dataflow_config(recipe, run="r")
    assert (set(config.models), set(config.streams)) == ({"solver", "grader"}, {"solver"})
    assert trainer_config(recipe, "grader").max_steps == 0
    assert trainer_config(recipe, "solver").max_steps is None


def test_the_trainer_publishes_a_probe_with_each_version_for_servers_of_another_party() -> None:
    other_party = "{kind='openai_tokens', base_url='http://127.0.0.1:8000', model='served'}"
    recipe = load_recipe("smoke/two_policies", [f"nodes.engines={{verifier={other_party}}}"])

    assert [trainer_config(recipe, policy).probe_every for policy in ("solver", "verifier")] == ["auto", 1]
    chosen = load_recipe("smoke", [f"nodes.engine={other_party}", "trainer.probe_every=3"])
    assert trainer_config(chosen, "solver").probe_every == 3


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (JUDGED.replace("is_trained = false", ""), "recipe.judge_without_flow"),
        (JUDGED.replace('policy = "grader"', 'policy = "stranger"'), "recipe.undefined_policy"),
        (
            JUDGED + '[flows.train.workflow]\nkind = "single_turn"\npolicy = "grader"\n',
            "recipe.untrained_policy",
        ),
    ],
)
def test_judges_must_exist_and_cannot_play_a_role_untrained(tmp_path: Path, text: str, code: str) -> None:
    with raises_code(InvalidInput, code):
        load_recipe(str(write(tmp_path, text)))


def test_a_warm_start_is_that_of_the_files_contents_and_stays_that_of_a_snapshot(tmp_path: Path) -> None:
    questions, snapshot_file = tmp_path / "questions.jsonl", tmp_path / "recipe.json"
    questions.write_text('{"question": "1+1=", "answer": "2"}\n')
    dataset = f'policies.solver.model.warm_start.dataset={{kind="jsonl", path="{questions}"}}'

    first = load_recipe("reverse", [dataset])
    again = load_recipe("reverse", [dataset])
    snapshot_file.write_text(snapshot(first))
    questions.write_text('{"question": "1+2=", "answer": "3"}\n')
    changed, resumed = load_recipe("reverse", [dataset]), load_recipe(str(snapshot_file))

    def data(recipe: Recipe) -> str:
        return str(recipe.policies[PolicyId("solver")].model["warm_start"].get("data", ""))

    assert len(data(first)) == 16
    assert data(first) == data(again) == data(resumed) != data(changed)
    assert data(load_recipe("reverse")) == "", "its data set reads no file"
