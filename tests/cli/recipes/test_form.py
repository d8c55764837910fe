"""Recipe form: environment, pools, bounds, budget, lists of plugins, and preflight checks of its providers."""

from pathlib import Path

import pytest

from astraflow.algorithms.losses import losses
from astraflow.cli.recipes.form import preflight_recipe, recipe_form
from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.preflight import CheckKind
from astraflow.contract.launching import FormField, RecipeForm
from astraflow.recipe.loading import load_recipe
from tests.errors import raises_code
from tests.fakes.ec2_server import CREDENTIALS, serving_ec2

HERE = """
extends = "smoke"
name = "here"
fleet.providers.here = { kind = "local_process", types = { small = 2.0 } }
fleet.pools.eu = { provider = "here", min_nodes = 1, max_nodes = 3 }
"""


@pytest.fixture
def here(tmp_path: Path) -> str:
    (tmp_path / "here.toml").write_text(HERE)
    return str(tmp_path / "here.toml")


def field(form: RecipeForm, key: str) -> FormField:
    (form_field,) = (field for field in form.fields if field.key == key)
    return form_field


@pytest.mark.long
def test_the_short_form_has_environment_pools_bounds_and_budget(here: str) -> None:
    form = recipe_form(here)
    assert {
        "flows.train.dataset.kind",
        "flows.train.workflow.kind",
        "flows.train.reward.kind",
        "flows.train.filters",
        "policies.solver.algorithm.advantages",
        "fleet.pools.eu.mode",
        "fleet.pools.eu.min_nodes",
        "fleet.pools.eu.max_nodes",
        "fleet.pools.eu.usd_per_hour_max",
        "fleet.budget.usd_per_hour_max",
        "fleet.budget.usd_per_day_max",
    } <= {field.key for field in form.fields if field.is_basic}
    bound = field(form, "fleet.pools.eu.max_nodes")
    assert (bound.kind, bound.value, bound.minimum, bound.is_optional) == ("integer", 3, 0, False)
    assert bound.description
    assert field(form, "fleet.pools.eu.mode").choices == ("off", "advise", "up-only", "on")
    budget = field(form, "fleet.budget.usd_per_day_max")
    assert (budget.kind, budget.value, budget.is_optional) == ("number", None, True)


def test_a_form_names_the_policies_that_are_trained() -> None:
    assert recipe_form("smoke/two_policies").trained == ("solver", "verifier")
    assert recipe_form("smoke/two_policies", ["policies.verifier.is_trained=false"]).trained == ("solver",)


def test_a_recipe_without_a_fleet_has_no_fleet_fields() -> None:
    form = recipe_form("smoke")
    assert not form.has_fleet
    assert form.pools == ()
    assert not [field.key for field in form.fields if field.key.startswith("fleet")]


@pytest.mark.long
def test_a_fleet_problem_is_reported_at_its_field(here: str) -> None:
    wrong = recipe_form(here, ["fleet.pools.eu.max_nodes=-1", "fleet.budget.usd_per_hour_max=-2"])
    problems = {problem.key: problem.message for problem in wrong.problems}
    assert set(problems) == {"fleet.pools.eu.max_nodes", "fleet.budget.usd_per_hour_max"}
    unknown = recipe_form(here, ["fleet.pools.eu.provider=moon"])
    (problem,) = unknown.problems
    assert "'moon'" in problem.message
    assert problem.message.endswith("known: here")


@pytest.mark.long
def test_a_plugin_with_a_slow_import_is_checked_only_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    for name in ("is_heavy", "has_heavy_module"):
        monkeypatch.setattr(losses, name, lambda kind: True)
    monkeypatch.setattr(losses, "check", lambda spec, **_: checked.append(spec["kind"]))
    assert recipe_form("smoke", ["stop.steps=7"]).problems == ()
    assert checked == []
    recipe_form("smoke", ["policies.solver.algorithm.loss={kind='ppo', clip_high=0.3}"])
    assert set(checked) == {"ppo"}


def test_a_problem_of_a_changed_plugin_is_shown_at_its_field() -> None:
    (problem,) = recipe_form("smoke", ["policies.solver.algorithm.loss={kind='ppo', clip_high=-4}"]).problems
    assert problem.key == "policies.solver.algorithm.loss.clip_high"


def test_every_problem_is_reported_at_once_each_at_its_field() -> None:
    overrides = [
        "flows.train.group_size=0",
        "stop.steps=many",
        "policies.solver.algorithm.loss={kind='ppo', clip_low='wide', clip_high=-4}",
        "flows.train.reward.kind=exact_mach",
        "flows.train.workflow.temperature=-1",
    ]
    form = recipe_form("smoke", overrides)
    assert sorted(problem.key for problem in form.problems) == [
        "flows.train.group_size",
        "flows.train.reward.kind",
        "flows.train.workflow.temperature",
        "policies.solver.algorithm.loss.clip_high",
        "policies.solver.algorithm.loss.clip_low",
        "stop.steps",
    ]
    (check,) = (check for check in form.checks if check.name == "Recipe")
    assert "6 problems" in check.message
    assert "1 problem," in recipe_form("smoke", overrides[:1]).checks[0].message


def test_a_list_of_plugins_keeps_order_and_options(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(
        'extends = "smoke"\nname = "own"\n[flows.train]\n'
        'filters = [{ kind = "length", max_tokens = 9 }, { kind = "informative" }]\n'
    )
    filters = field(recipe_form(str(tmp_path / "own.toml")), "flows.train.filters")
    assert (filters.kind, filters.value) == ("plugins", "length, informative")
    assert filters.entries == ('{kind = "length", max_tokens = 9}', '{kind = "informative"}')
    assert {"keep_all", "length", "informative"} <= set(filters.choices)
    changed = load_recipe(str(tmp_path / "own.toml"), [f"flows.train.filters=[{filters.entries[0]}]"])
    assert changed.flows["train"].filters == ({"kind": "length", "max_tokens": 9},)


@pytest.mark.long
def test_disk_memory_and_ports_are_checked_before_a_launch(here: str) -> None:
    checks = {check.name: check for check in recipe_form(here).checks}
    assert list(checks) == ["Recipe", "Disk", "Memory", "Ports"]
    assert "on 127.0.0.1" in checks["Ports"].message


@pytest.mark.long
def test_a_foreign_join_address_fails_the_ports_check_of_remote_pools(tmp_path: Path) -> None:
    cloud = 'kind = "ec2", regions = ["eu-west-1"], types = { g6 = 0.8 }, boot = { program = ["/x"] }'
    (tmp_path / "cloud.toml").write_text(
        f'extends = "smoke"\nname = "cloud"\nfleet.providers.aws = {{ {cloud} }}\n'
        'fleet.pools.gpu = { provider = "aws" }\n'
    )
    form = recipe_form(str(tmp_path / "cloud.toml"), host="203.0.113.77")
    assert [pool.is_remote for pool in form.pools] == [True]
    (ports,) = (check for check in form.checks if check.name == "Ports")
    assert not ports.is_ok
    assert "'203.0.113.77'" in ports.message


@pytest.mark.long
def test_a_preflight_asks_providers_for_prices_and_launch_checks(here: str) -> None:
    answer = preflight_recipe(here)
    (pool,) = answer.pools
    assert (pool.node_usd_per_hour, pool.max_nodes) == (2.0, 3)
    assert [(check.kind.value, check.pool, check.is_ok) for check in answer.checks] == [
        ("list", None, True),
        ("launch", "eu", True),
        ("price", "eu", True),
    ]
    with raises_code(InvalidInput, "recipe.invalid_fleet"):
        preflight_recipe(here, ["fleet.pools.eu.max_nodes=-1"])


@pytest.mark.long
def test_a_pool_without_a_provider_price_uses_the_price_of_the_recipe(tmp_path: Path, here: str) -> None:
    free = ["fleet.providers.here.types={small=0.0}", "dataflow.pools={eu={price_per_hour=3.5, max_nodes=3}}"]
    (pool,) = preflight_recipe(here, free).pools
    assert (pool.node_usd_per_hour, pool.price_source) == (3.5, "the recipe")


@pytest.mark.long
def test_a_refused_preflight_check_suggests_a_correction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in CREDENTIALS.items():
        monkeypatch.setenv(key, value)
    with serving_ec2() as server:
        url = server.failing("UnauthorizedOperation", 403)
        cloud = (
            f'kind = "ec2", regions = ["eu-west-1"], types = {{ "t3.micro" = 1.0 }}, endpoint_url = "{url}", '
            'boot = { program = ["/x"] }, machine = { image_id = "ami-12c6146b" }'
        )
        (tmp_path / "cloud.toml").write_text(
            f'extends = "smoke"\nname = "cloud"\nfleet.providers.aws = {{ {cloud} }}\n'
            'fleet.pools.gpu = { provider = "aws" }\n'
        )
        checks = preflight_recipe(str(tmp_path / "cloud.toml")).checks
    (launch,) = (check for check in checks if check.kind is CheckKind.LAUNCH)
    assert not launch.is_ok
    assert "UnauthorizedOperation" in launch.message
    assert "credentials" in launch.remedy


NESTED = """
extends = "smoke"
name = "nested"

[flows.train.workflow]
kind = "tool_use"
tools = [{ kind = "sandbox", sandbox = { kind = "local", workers = 2 } }, { kind = "calculator" }]
"""


def test_plugins_in_options_have_fields_unless_they_are_in_a_list(tmp_path: Path) -> None:
    (tmp_path / "nested.toml").write_text(NESTED)
    form = recipe_form(str(tmp_path / "nested.toml"))
    assert form.problems == ()
    assert field(form, "flows.train.workflow.call_format").choices == ("hermes", "xml", "python")
    assert field(form, "flows.train.workflow.call_format").value == "hermes"
    assert not [entry.key for entry in form.fields if ".tools." in entry.key]


def test_an_environment_has_fields_of_its_own(tmp_path: Path) -> None:
    import tests.fakes.corridor  # noqa: F401 (registers the environment)

    workflow = '{ kind = "act", environment = { kind = "test_corridor" } }'
    (tmp_path / "act.toml").write_text(f'extends = "smoke"\nname = "act"\nflows.train.workflow = {workflow}\n')
    form = recipe_form(str(tmp_path / "act.toml"), ["flows.train.workflow.environment.length=5"])
    assert form.problems == ()
    length = field(form, "flows.train.workflow.environment.length")
    assert (length.value, length.settable_by, length.description) == (5, "agent", "Steps to the door.")
    assert "test_corridor" in field(form, "flows.train.workflow.environment.kind").choices
    wrong = recipe_form(str(tmp_path / "act.toml"), ["flows.train.workflow.environment.size=5"])
    assert [problem.key for problem in wrong.problems] == ["flows.train.workflow.environment.size"]
