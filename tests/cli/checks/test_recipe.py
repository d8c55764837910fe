"""The dry run of a recipe: every packaged recipe passes it, and settings that cannot work are refused with a remedy."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from astraflow.cli.checks.recipe import plan_values
from astraflow.cli.main import app
from astraflow.cli.recipes.plan import RecipePlan, plan_recipe
from astraflow.recipe.config import dataflow_config
from astraflow.recipe.files import packaged_recipes
from astraflow.recipe.loading import Check, load_recipe

GPU_BYTES = 79 * 2**30
DRAFTS = "nodes.engine.speculation='ngram'"
BACKEND = "policies.solver.backend"


def planned(name: str, *overrides: str) -> RecipePlan:
    return plan_recipe(load_recipe(name, overrides, check=Check.LIGHT), gpu_bytes=GPU_BYTES)


@pytest.fixture(autouse=True)
def _home_without_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize("name", packaged_recipes())
def test_every_packaged_recipe_passes_the_dry_run(name: str) -> None:
    plan = planned(name)
    assert plan.problems == ()
    assert json.dumps(plan_values(plan))


@pytest.mark.parametrize(
    ("name", "batching", "served"),
    [
        ("math", "packed", "sglang 0.5.23 lists Qwen3ForCausalLM"),
        ("math/qwen35-4b", "recurrent states", "not run by the authors"),
        ("tool_use/gpt_oss", "packed", "attention backend with sinks"),
        ("reverse/falcon_h1", "recurrent states", ""),
    ],
)
def test_the_dry_run_says_how_trainer_and_engine_compute_a_family(name: str, batching: str, served: str) -> None:
    (policy,) = planned(name).policies
    assert batching in policy.batching
    assert served in policy.served


def test_prompts_that_name_no_teacher_are_refused_before_the_run() -> None:
    (problem,) = planned("reverse/distill_two", "policies.solver.algorithm.teacher_field=task").problems
    assert problem.code == "task.unknown_teacher"
    assert "'task' is None" in str(problem)


def test_states_of_a_hybrid_take_room_for_each_sequence() -> None:
    cached_tokens = []
    for size in (16_384, 32_768):
        (policy,) = planned("math/qwen35-4b", f"nodes.engine.context_tokens={size}").policies
        assert policy.server is not None
        cached_tokens.append(policy.server.cached_tokens)
    assert cached_tokens[1] > 1.04 * cached_tokens[0]


ROUNDED = "nodes.engine={kind='local_torch', weights='int4'}"
FP8 = ("nodes.engine.kind=vllm", "nodes.engine.weights=fp8")
LOSS = "policies.solver.algorithm.loss"


@pytest.mark.parametrize(
    ("name", "overrides", "is_warned"),
    [
        ("reverse", (), False),
        ("reverse", (ROUNDED, f"{LOSS}={{kind='reinforce'}}"), True),
        ("reverse", (ROUNDED, f"{LOSS}={{kind='reinforce', centering=8}}"), False),
        ("reverse", (ROUNDED, f"{LOSS}={{kind='reinforce', corrections=[{{kind='tis'}}]}}"), False),
        ("math", (*FP8, f"{LOSS}={{kind='reinforce'}}"), True),
    ],
)
def test_rounded_rollouts_without_a_correction_are_a_warning(
    name: str, overrides: Sequence[str], is_warned: bool
) -> None:
    warnings = planned(name, *overrides).warnings

    assert bool(warnings) is is_warned
    assert all("centering" in warning and "tis" in warning for warning in warnings)


def test_rounded_weights_leave_more_memory_for_the_cache() -> None:
    servers = [planned("math", *overrides).policies[0].server for overrides in ((), FP8)]

    assert servers[0] is not None and servers[1] is not None
    assert servers[1].weights == servers[0].weights // 2


@pytest.mark.parametrize(
    ("name", "overrides", "codes"),
    [
        ("math", ["nodes.engine.devices=['0','1','2','3']"], ["recipe.gpu_too_small"]),
        ("math", ["policies.solver.backend.recompute='none'"], ["recipe.gpu_too_small"]),
        (
            "math",
            ["policies.solver.algorithm.minibatches=512"],
            ["recipe.too_many_minibatches", "recipe.too_many_ranks"],
        ),
        ("math", ["policies.solver.algorithm.minibatches=64"], ["recipe.too_many_minibatches"]),
        ("math", ["policies.solver.batch_groups=1"], ["recipe.too_many_minibatches", "recipe.too_many_ranks"]),
        ("math", ["nodes.engine.context_tokens=8192"], ["recipe.context_too_short"]),
        ("math", ["nodes.engine.servers=3"], ["recipe.devices_and_servers"]),
        ("math", ["nodes.engine.memory_share=0.23"], ["recipe.cache_too_small"]),
        ("math/moe", ["policies.solver.backend={kind='titan', ranks=4}"], ["recipe.titan_unsupported"]),
        ("math", [DRAFTS, "flows.train.workflow.top_k=20"], ["engine.unverified_drafts"]),
        ("math/vllm", [DRAFTS, "evaluations.aime24.workflow.min_p=0.1"], ["engine.unverified_drafts"]),
        ("search", ["nodes.engine.tensor_parallel=3"], ["recipe.heads_not_divisible", "recipe.devices_and_servers"]),
        (
            "textcraft",
            [f"policies.solver.backend.{option}" for option in ("ranks=3", "gpus=[0, 1, 2]", "sequence_ranks=3")],
            ["recipe.heads_not_divisible"],
        ),
        ("reverse", [f"{BACKEND}.float8=true", f"{BACKEND}.device='cpu'"], ["trainer.float8_without_gpu"]),
        (
            "reverse",
            [BACKEND + "={kind='fsdp', cpu_offload=true, device='cpu'}"],
            ["trainer.offload_without_gpu"],
        ),
        ("reverse", [BACKEND + ".lora={target_modules=['q_prj']}"], ["trainer.unknown_adapter_targets"]),
    ],
)
def test_impossible_settings_are_refused(name: str, overrides: Sequence[str], codes: list[str]) -> None:
    assert set(codes) <= {problem.code for problem in planned(name, *overrides).problems}


@pytest.mark.parametrize(
    ("rows", "setting", "code", "named"),
    [
        (None, "", "dataset.unreadable", "flows.train.dataset"),
        ('{"question": "1+1", "solution": "2"}', "", "dataset.wrong_field", "answer"),
        (
            '{"question": "1+1", "solution": "2"}',
            "answer_field=''",
            "recipe.reward_field_missing",
            "question, solution",
        ),
        ('{"question": "1+1", "solution": "2"}', "answer_field='solution'", "", ""),
    ],
)
def test_data_are_opened_before_the_run(tmp_path: Path, rows: str | None, setting: str, code: str, named: str) -> None:
    file = tmp_path / "rows.jsonl"
    if rows is not None:
        file.write_text(f"{rows}\n")
    dataset = ", ".join(part for part in ("kind='jsonl'", f"path='{file}'", setting) if part)
    plan = planned("reverse", f"flows.train.dataset={{{dataset}}}")

    problems = [problem for problem in plan.problems if "flows.train" in str(problem)]
    assert [problem.code for problem in problems] == ([code] if code else [])
    assert all(named in str(problem) for problem in problems)
    assert plan.flows[0].reward_fields == (("answer",),)


@pytest.mark.parametrize(
    ("overrides", "is_unmerged", "shown"),
    [
        ((), True, "unmerged, rank 32"),
        ((f"{BACKEND}.lora.rank=128",), False, "rank 128"),
        (("nodes.engine.lora=false",), False, "lora = false"),
        ((BACKEND + ".lora={rank=8}", "nodes.engine.lora=true"), True, "rank 8"),
    ],
)
def test_servers_serve_adapters_unmerged_unless_they_cannot(
    overrides: Sequence[str], is_unmerged: bool, shown: str
) -> None:
    (policy,) = planned("math/moe", *overrides).policies
    assert shown in policy.adapters
    recipe = load_recipe("math/moe", overrides, check=Check.LIGHT)
    assert dataflow_config(recipe, run="a").engines["solver"]["lora"] is is_unmerged


@pytest.mark.parametrize("name", ["math", "math/vllm"])
def test_servers_draft_for_whole_distributions_and_kept_sets_that_they_return(name: str) -> None:
    kept = ["flows.train.workflow.top_k=20"] if name == "math/vllm" else []
    assert "engine.unverified_drafts" not in {problem.code for problem in planned(name, DRAFTS, *kept).problems}


def test_engines_of_policies_without_adapters_or_servers_are_as_the_recipe_says() -> None:
    assert planned("math").policies[0].adapters == ""
    assert dataflow_config(load_recipe("math", check=Check.LIGHT), run="a").engines == {}
    lora = load_recipe("reverse/lora", check=Check.LIGHT)
    assert dataflow_config(lora, run="a").engines["solver"] == lora.nodes.engine
    assert "added to the weights in float32" in planned("reverse/lora").policies[0].adapters


def test_a_recipe_with_terminal_tasks_in_the_sandbox_names_the_isolation_that_servers_need() -> None:
    sandbox = "flows.train.workflow.environment.runner='sandbox'"
    (need,) = [need for need in planned("terminal", sandbox).needs if "namespaces" in need.name]
    assert "runner = 'docker'" in need.command
    assert not [need for need in planned("terminal").needs if "namespaces" in need.name]


def test_two_trainers_on_the_same_gpus_are_refused_with_the_place_to_change() -> None:
    (problem,) = planned("math_multi_agent", "policies.verifier.backend.gpus=[0, 1]").problems
    assert problem.code == "recipe.gpu_too_small"
    assert "policies.verifier.backend" in str(problem)


def test_a_gpu_holds_the_parts_that_the_recipe_places_there() -> None:
    uses = planned("math_multi_agent").uses
    holders = {gpu: sorted({use.part.partition(",")[0] for use in uses if use.gpu == gpu}) for gpu in range(8)}
    assert holders[0] == holders[1] == ["trainer of 'solver'"]
    assert holders[2] == holders[3] == ["trainer of 'verifier'"]
    assert holders[4] == holders[5] == ["sglang for 'solver'"]
    assert holders[6] == holders[7] == ["sglang for 'verifier'"]


def test_steps_prompts_and_epochs_follow_from_the_recipe() -> None:
    plan = planned("math_efficient_data")
    (flow,), (policy,) = plan.flows, plan.policies
    assert (flow.prompts, flow.episodes, flow.epochs) == (800 * 32, 800 * 256, 3.2)
    assert policy.batch_rows == 256
    assert policy.longest_row == policy.context_tokens == 16_384


def test_rows_are_as_long_as_the_questions_and_the_workflow_make_them() -> None:
    (policy,) = planned("reverse").policies
    assert policy.context_tokens == 512
    assert 6 + len("rev abcd=") < policy.longest_row < 300
    (longer,) = planned("reverse", "flows.train.workflow.max_new_tokens=100").policies
    assert longer.longest_row == policy.longest_row + 94
    (multi_turn,) = planned("textcraft/tiny").policies
    assert multi_turn.longest_row == 512


def test_rows_are_measured_in_tokens_of_the_model_on_a_sample_of_the_whole_data_set(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    questions = ["rev ab="] * 1000
    questions[500] *= 9
    data.write_text("".join(json.dumps({"question": text, "answer": "ba"}) + "\n" for text in questions))
    setting = f"flows.train.dataset={{kind='jsonl', path='{data}'}}"
    (characters,) = planned("reverse", setting).policies
    (words,) = planned("reverse", setting, "policies.solver.model.words=['rev ab=']").policies
    assert characters.longest_row - words.longest_row == 9 * len("rev ab=") - 9


def test_a_pass_has_no_more_tokens_than_the_rows_of_an_optimizer_step() -> None:
    (small,) = planned("reverse", "policies.solver.batch_groups=4").policies
    (large,) = planned("reverse", "policies.solver.batch_groups=4096").policies
    assert small.trainer is not None
    assert large.trainer is not None
    assert small.batch_rows * small.longest_row < small.micro_batch_tokens
    ratio = small.batch_rows * small.longest_row / small.micro_batch_tokens
    assert small.trainer.activations == pytest.approx(large.trainer.activations * ratio, rel=0.01)


def test_a_trainer_that_the_memory_of_a_machine_without_gpus_cannot_hold_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert planned("reverse").problems == ()
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=10**8))
    assert [problem.code for problem in planned("reverse").problems] == ["recipe.memory_too_small"]
    assert "recipe.memory_too_small" not in {problem.code for problem in planned("math").problems}


def test_the_sizes_of_a_model_come_from_its_folder_where_it_is(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen3",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 128,
        "vocab_size": 100,
        "max_position_embeddings": 40_960,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (policy,) = planned("math", f"policies.solver.model.path='{tmp_path}'").policies
    assert policy.parameters == 100 * 64 + 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64 + 2 * 16)


def test_missing_downloads_have_a_command(tmp_path: Path) -> None:
    (tmp_path / "models" / "Qwen3-8B").mkdir(parents=True)
    (tmp_path / "models" / "Qwen3-8B" / "model.safetensors").touch()
    states = {need.name: (need.is_here, need.command) for need in planned("math/offline").needs}
    assert states["model ~/models/Qwen3-8B"][0] is True
    assert states["data math aime25"] == (
        False,
        "hf download --repo-type dataset math-ai/aime25 --local-dir ~/data/aime25",
    )


def test_the_command_prints_json_and_ends_with_code_1_for_a_problem() -> None:
    run = CliRunner().invoke(app, ["check", "recipe", "smoke", "--json"])
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout)["needs_gpu"] is False
    run = CliRunner().invoke(app, ["check", "recipe", "math", "--gpu-gib", "24"])
    assert run.exit_code == 1
    assert "recipe.gpu_too_small" in run.stdout
