import pytest

from astraflow.baselines.selection import by_policy, select
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.recipe.loading import load_recipe

SOLVER, VERIFIER = PolicyId("solver"), PolicyId("verifier")


def test_an_evaluation_and_a_flow_are_tasks_of_the_recipe() -> None:
    recipe = load_recipe("smoke")
    progress, train = select(recipe, "progress"), select(recipe, "train")
    assert progress.config == recipe.evaluations["progress"]
    assert (train.config.samples, train.config.prompts) == (recipe.flows["train"].group_size, 0)
    assert progress.policies == train.policies == (SOLVER,)


def test_samples_prompts_and_seed_replace_those_of_the_recipe() -> None:
    chosen = select(load_recipe("smoke", ["seed=7"]), "progress", samples=2, prompts=5, seed=11)
    assert (chosen.config.samples, chosen.config.prompts) == (2, 5)
    assert chosen.config.workflow["seed"] == 11
    assert chosen.dataset_seed == 7


@pytest.mark.parametrize(
    ("recipe", "name", "code"),
    [("smoke", "held-out", "baseline.unknown_tasks"), ("reverse/sft", "train", "baseline.no_policy")],
)
def test_tasks_without_answers_of_a_policy_are_refused(recipe: str, name: str, code: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        select(load_recipe(recipe), name)
    assert refusal.value.code == code


def test_a_value_is_for_all_policies_or_for_one() -> None:
    both = (SOLVER, VERIFIER)
    assert by_policy(["a"], both, option="x") == {SOLVER: "a", VERIFIER: "a"}
    assert by_policy(["verifier=b", "a"], both, option="x") == {SOLVER: "a", VERIFIER: "b"}
    assert by_policy(["org/model=1"], (SOLVER,), option="x") == {SOLVER: "org/model=1"}
    for values in ([], ["solver=a"], ["solver=", "verifier=b"]):
        with pytest.raises(InvalidInput) as refusal:
            by_policy(values, both, option="x")
        assert refusal.value.code == "baseline.policy_missing"
