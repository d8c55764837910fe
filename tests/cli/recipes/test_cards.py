"""Cards of recipes: needs, parts, and why a machine cannot run a recipe."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.cli.recipes import cards as module
from astraflow.cli.recipes.cards import SECOND_ENGINE_BYTES, Machine, needs_of, obstacles, recipe_cards
from astraflow.contract.launching import RecipeObstacle
from astraflow.models.shapes import model_shape
from astraflow.raas.engines.server.installation.host import Gpu
from astraflow.recipe.loading import Check, load_recipe

GPU = Gpu(name="H100", memory_bytes=85 * 10**9)
LAPTOP = Machine(gpus=(), memory_bytes=16 * 10**9, disk_bytes=10**12, engines=frozenset(), has_torch=True)
SERVER = Machine(gpus=(GPU,) * 8, memory_bytes=10**12, disk_bytes=10**13, engines=frozenset({"sglang"}), has_torch=True)
ON_GPUS = (
    "policies.solver.model={kind='huggingface', path='Qwen/Qwen3-0.6B'}",
    "policies.solver.backend={kind='fsdp', ranks=4, gpus=[0, 1, 2, 3], recompute='full'}",
    "nodes.count=1",
    "nodes.evaluates=false",
    "nodes.engine={kind='sglang', servers=2, tensor_parallel=2, devices=['4,5', '6,7'], context_tokens=4096}",
)


def obstacles_of(machine: Machine, overrides: Sequence[str] = (), name: str = "reverse") -> list[RecipeObstacle]:
    return list(obstacles(load_recipe(name, overrides, check=Check.NONE), name, machine))


def test_gpus_of_trainers_and_engines_are_needed_together() -> None:
    assert needs_of(load_recipe("reverse", ON_GPUS, check=Check.NONE)).gpus == 8
    assert needs_of(load_recipe("reverse", ["nodes.engine.kind=sglang"], check=Check.NONE)).gpus == 0
    overrides = ["policies.solver.backend.device=cuda:0", "nodes.count=1", "nodes.engine={kind='vllm', devices=['1']}"]
    assert needs_of(load_recipe("reverse", overrides, check=Check.NONE)).gpus == 2
    assert [obstacle for obstacle in obstacles_of(SERVER, ON_GPUS) if "GPU" in obstacle.cause] == []


def test_missing_and_small_gpus_are_obstacles_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(SERVER, gpus=(replace(GPU, memory_bytes=10**9),) * 8)
    monkeypatch.setattr(module, "packaged_recipes", lambda: ["reverse", "reverse/tiny"])
    for machine, has in ((LAPTOP, "has none"), (small, "has 8 H100 (1 GB)")):
        gpus = obstacles_of(replace(machine, engines=SERVER.engines), ON_GPUS)[0]
        assert "8 GPUs with " in gpus.cause
        assert has in gpus.cause
        assert "reverse/tiny" in gpus.remedy


@pytest.mark.parametrize(
    ("machine", "override", "cause", "remedy"),
    [
        (replace(LAPTOP, memory_bytes=10**9), "seed=0", "1.5 GB of memory", "nodes.count"),
        (LAPTOP, "card.memory_gb=100", "101.5 GB of memory", "larger machine"),
        (replace(LAPTOP, disk_bytes=10**8), "seed=0", "1 GB of disk", "ASTRAFLOW_HOME"),
        (replace(LAPTOP, has_torch=False), "seed=0", "torch", "astraflow[train]"),
        (LAPTOP, "nodes.engine.kind=sglang", "engine sglang", "astraflow engines install sglang"),
        (LAPTOP, "policies.solver.model={kind='fetched', name='smollm2'}", "smollm2", "astraflow fetch smollm2"),
        (
            replace(LAPTOP, memory_bytes=10**12),
            "policies.solver.model={kind='huggingface', path='Qwen/Qwen3-8B'}",
            "Qwen/Qwen3-8B",
            "data_root",
        ),
    ],
)
def test_each_obstacle_has_cause_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: Machine, override: str, cause: str, remedy: str
) -> None:
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path))
    (obstacle,) = obstacles_of(machine, ["nodes.engine.kind=local_torch", override])
    assert cause in obstacle.cause
    assert remedy in obstacle.remedy


def test_an_evaluation_needs_the_memory_of_a_second_engine_on_each_node() -> None:
    tiny = "policies.solver.model={kind='tiny', hidden_size=1024, layers=8}"
    shape = model_shape(load_recipe("reverse", [tiny], check=Check.NONE).policies["solver"].model)
    assert shape is not None
    second = SECOND_ENGINE_BYTES * shape.parameters / 1e9

    def needed(*overrides: str) -> float:
        return needs_of(load_recipe("reverse", [tiny, *overrides], check=Check.NONE)).memory_gb

    for count in ("nodes.count=1", "nodes.count=2"):
        without = needed("nodes.evaluates=false", count)
        assert needed(count) - without == pytest.approx(int(count[-1]) * second, abs=0.11)
    server = "nodes.engine={kind='sglang'}"
    assert needed(server) == needed(server, "nodes.evaluates=false"), "a server is reserved"


def test_a_recipe_without_torch_and_models_runs_everywhere() -> None:
    assert obstacles_of(replace(LAPTOP, has_torch=False), name="smoke") == []


@pytest.mark.long
def test_a_card_describes_one_file_and_is_not_inherited(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('extends = "reverse"\nname = "own"\nsummary = "Own"\n')
    cards = {card.name: card for card in recipe_cards([tmp_path])}
    assert cards["reverse"].minutes is not None
    assert cards["reverse"].shows
    assert (cards["own"].minutes, cards["own"].shows) == (None, "")
    assert cards["own"].parts == cards["reverse"].parts


def test_the_parts_name_policies_and_the_world_that_they_act_in() -> None:
    act = "flows.train.workflow={kind='act', policy='solver', environment={kind='textcraft'}}"
    tools = "flows.train.workflow={kind='tool_use', policy='solver', tools=[{kind='calculator'}, {kind='python'}]}"
    for override, world in ((act, "textcraft"), (tools, "calculator, python"), ("seed=0", "")):
        parts = module._parts(load_recipe("smoke/two_policies", [override], check=Check.NONE))
        assert parts.policies == ("solver", "verifier")
        assert parts.world == world
