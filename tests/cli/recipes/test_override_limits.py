"""Overrides from the page: every setting has a trust class, and a setting without one is rejected."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args

import pytest
from pydantic import BaseModel

from astraflow.cli.recipes.form import preflight_recipe, recipe_form
from astraflow.cli.recipes.override_limits import FLEET_CLASSES, Limits, refusals
from astraflow.contract.errors import NotPermitted
from astraflow.dataflow.config import DataflowConfig
from astraflow.datasets import datasets
from astraflow.recipe.config import Recipe
from astraflow.recipe.loading import load_recipe
from astraflow.recipe.plugins import plugin_specs
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy, declared_class, settable_by
from astraflow.runtime.plugins import Registry
from astraflow.trainer.config import TrainerConfig
from maintainer.fleet.config import FleetConfig

FLEETS = """
extends = "smoke"
name = "fleets"
fleet.providers.sky = { kind = "skypilot", endpoint = "http://127.0.0.1:9" }
fleet.providers.here = { kind = "local_process", types = { small = 2.0 } }
fleet.pools.eu = { provider = "here", min_nodes = 1, max_nodes = 3 }
maintainer.llm = { kind = "scripted" }
dataflow.pools.eu = { max_nodes = 3 }
nodes.preemption = { kind = "file", path = "/run/notice" }
weights.storage = { kind = "s3", bucket = "own" }
nodes.engine.speed_factor_file = "/run/pace"
"""

OPEN_TABLES = {
    "PolicyConfig.sampler",
    "PolicyConfig.model",
    "PolicyConfig.backend",
    "StreamConfig.sampler",
    "AlgorithmConfig.advantages",
    "AlgorithmConfig.loss",
    "AlgorithmConfig.teacher",
    "AlgorithmConfig.token_advantages",
    "CriticConfig.loss",
    "FlowConfig.dataset",
    "FlowConfig.workflow",
    "FlowConfig.reward",
    "FlowConfig.selector",
    "FlowConfig.filters",
    "EvaluationConfig.dataset",
    "EvaluationConfig.workflow",
    "EvaluationConfig.reward",
    "NodesConfig.engine",
    "NodesConfig.engines",
    "RaasConfig.engine",
    "RaasConfig.engines",
    "Recipe.trainer",
    "Recipe.dataflow",
    "Recipe.fleet",
    "Recipe.maintainer",
}
"""Tables whose contents have their own trust classes: plugins, and settings passed on to a role."""


@pytest.fixture
def fleets(tmp_path: Path) -> str:
    (tmp_path / "fleets.toml").write_text(FLEETS)
    return str(tmp_path / "fleets.toml")


def refused(recipe_name: str, *overrides: str, role: str = "operator", places: tuple[str, ...] = ()) -> list[str]:
    """Returns the keys that the role may not override with these values."""
    plain = load_recipe(recipe_name)
    return [refusal.key for refusal in refusals(plain, overrides, Limits(role=role, data_locations=places))]


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from models_in(inner)


def undeclared(model: type[BaseModel]) -> Iterator[str]:
    """Yields fields without a trust class, of the model and nested models, that are not numbers or closed choices."""
    for name, info in model.model_fields.items():
        inner = list(models_in(info.annotation))
        if declared_class(model, (name,)) is None:
            if not inner and settable_by(model, (name,)) is SettableBy.RECIPE:
                yield f"{model.__name__}.{name}"
            for nested_model in inner:
                yield from undeclared(nested_model)


def registries() -> Iterator[Registry[Any]]:
    yield from {registry.noun: registry for _, registry, _ in plugin_specs(load_recipe("smoke"))}.values()


def test_every_free_text_setting_declares_its_trust_class() -> None:
    models: list[type[BaseModel]] = [Recipe, DataflowConfig, TrainerConfig]
    models += [registry.options(kind) for registry in registries() for kind in registry.built_in_kinds()]
    undeclared_names = {name for model in models for name in undeclared(model)}
    assert undeclared_names - OPEN_TABLES == set(), (
        "declare Annotated[..., SettableBy.RECIPE], or another class, on these fields"
    )


def test_every_fleet_table_has_a_trust_class() -> None:
    covered = {pattern[0] for pattern, _ in FLEET_CLASSES if pattern}
    only_the_recipe = {"cluster", "database", "providers"}
    assert covered | only_the_recipe == set(FleetConfig.model_fields)


def test_text_without_a_trust_class_cannot_be_overridden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Options(Config):
        place: str = ""
        declared: Annotated[str, SettableBy.AGENT] = ""
        table: dict[str, str] = {}  # noqa: RUF012 (pydantic copies it)
        count: int = 1

    monkeypatch.setitem(datasets._registered, "third", (object, Options))
    kind = 'flows.train.dataset={kind = "third"}'
    key = "flows.train.dataset"
    assert refused("smoke", kind) == []
    assert refused("smoke", kind, f"{key}.count=2", f"{key}.declared=x") == []
    assert refused("smoke", kind, f"{key}.place=x", f"{key}.table.a=x") == [f"{key}.place", f"{key}.table.a"]
    assert refused("smoke", f'{key}={{kind = "third", place = "x"}}') == [f"{key}.place"]
    assert refused("smoke", 'flows.train.filters=[{kind = "no_such", place = "x"}]') == ["flows.train.filters.0.place"]


@pytest.mark.parametrize("role", ["agent", "operator", "admin"])
@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("fleet.providers.sky.endpoint=http://203.0.113.9", "fleet.providers.sky.endpoint"),
        ("fleet.providers.sky={endpoint = 'http://203.0.113.9'}", "fleet.providers.sky.endpoint"),
        ("fleet.providers.sky.token_variable=HOME", "fleet.providers.sky.token_variable"),
        ("fleet.providers.new={kind = 'local_process'}", "fleet.providers.new.kind"),
        ("fleet.providers.here.launch_delay_s=9", "fleet.providers.here.launch_delay_s"),
        ("fleet.providers.sky.boot.wheel=https://203.0.113.9/a.whl", "fleet.providers.sky.boot.wheel"),
        ("fleet.database=postgresql://203.0.113.9", "fleet.database"),
        ("fleet.pools.eu.provider=sky", "fleet.pools.eu.provider"),
        ("fleet.pools.eu.engine=scripted", "fleet.pools.eu.engine"),
        ("fleet.pools.eu.options={user = 'x'}", "fleet.pools.eu.options.user"),
        ("maintainer.llm.kind=chat_completions", "maintainer.llm.kind"),
        ("tracing.to=http://203.0.113.9", "tracing.to"),
        ("nodes.credential_folder=/root", "nodes.credential_folder"),
        ("nodes.pull.sources=['203.0.113.9:1']", "nodes.pull.sources"),
        ("nodes.engine.speed_factor_file=/etc/hostname", "nodes.engine.speed_factor_file"),
        ("nodes.preemption.path=/etc/hostname", "nodes.preemption.path"),
        ("weights.storage.endpoint=http://203.0.113.9", "weights.storage.endpoint"),
        ("weights.storage={kind = 'disk'}", "weights.storage.kind"),
        ("dataflow.metrics=0.0.0.0:1", "dataflow.metrics"),
        ("dataflow.keda={}", "dataflow.keda"),
        ("policies.solver.model={kind = 'huggingface', path = '/etc'}", "policies.solver.model.path"),
        ("flows.train.dataset={kind = 'jsonl', path = '/etc/hostname'}", "flows.train.dataset.path"),
        ("flows.train.dataset={kind = 'parquet', path = 's3://b/x'}", "flows.train.dataset.path"),
        ("flows.new.dataset={kind = 'jsonl', path = '/etc/hostname'}", "flows.new.dataset.path"),
        ("name=other", "name"),
        ("no.such=1", "no.such"),
    ],
)
def test_no_role_can_override_paths_addresses_and_variables(fleets: str, override: str, key: str, role: str) -> None:
    assert refused(fleets, override, role=role) == [key]


@pytest.mark.parametrize(
    ("override", "roles"),
    [
        ("fleet.pools.eu.max_nodes=9", {"admin"}),
        ("fleet.pools.eu.min_nodes=0", {"admin"}),
        ("fleet.pools.eu.mode=on", {"admin"}),
        ("fleet.pools.eu.usd_per_hour_max=9", {"admin"}),
        ("fleet.envelope.nodes=9", {"admin"}),
        ("fleet.budget.usd_per_day_max=9", {"admin"}),
        ("fleet.times.max_age_s=9", {"admin"}),
        ("dataflow.pools.eu.max_nodes=9", {"admin"}),
        ("dataflow.scaling.max_nodes=9", {"admin"}),
        ("nodes.price_per_hour=9", {"admin"}),
        ("fleet.pools.eu.nodes=2", {"operator", "admin"}),
        ("stop.steps=9", {"agent", "operator", "admin"}),
        ("dataflow.scaling.headroom=0.1", {"agent", "operator", "admin"}),
        ("trainer.max_steps=9", {"agent", "operator", "admin"}),
        ("flows.train.filters=[]", {"agent", "operator", "admin"}),
        ("flows.train.filters=[{kind = 'length', max_tokens = 9}]", {"agent", "operator", "admin"}),
        ("flows.train.workflow.temperature=0.5", {"agent", "operator", "admin"}),
        ("policies.solver.backend={kind = 'local', device = 'cpu'}", {"agent", "operator", "admin"}),
    ],
)
def test_only_admins_override_bounds_and_budgets(fleets: str, override: str, roles: set[str]) -> None:
    all_roles = ("viewer", "agent", "operator", "admin")
    assert {role for role in all_roles if not refused(fleets, override, role=role)} == roles


def test_data_paths_stay_inside_declared_folders_after_links_are_resolved(tmp_path: Path) -> None:
    data, secret = tmp_path / "data", tmp_path / "secret.jsonl"
    (data / "inner").mkdir(parents=True)
    for file in (data / "a.jsonl", data / "inner" / "b.jsonl", secret):
        file.write_text("{}\n")
    (data / "link.jsonl").symlink_to(secret)
    (data / "linked").mkdir()
    (data / "linked" / "out").symlink_to(tmp_path)

    def read(path: str, *, kind: str = "jsonl") -> bool:
        override = f"flows.train.dataset={{kind = '{kind}', path = {json.dumps(path)}}}"
        return not refused("smoke", override, places=(str(data), "s3://bucket/sets", "hf://datasets/owner"))

    assert read(str(data / "a.jsonl"))
    assert read(str(data / "inner"))
    assert read(f"{data}/inner/*.parquet", kind="parquet")
    assert read("s3://bucket/sets/one/*.parquet", kind="parquet")
    assert read("owner/name", kind="huggingface")
    for path in (
        str(secret),
        str(data / "link.jsonl"),
        str(data / "linked"),
        f"{data}/linked/*/x",
        f"{data}/../secret.jsonl",
        f"{data}/absent.jsonl",
        f"{data}-other/a.jsonl",
        "~/a.jsonl",
        "a.jsonl",
        "\0",
        "file:///etc/hostname",
        "s3://bucket/other",
        "s3://bucket/sets/../other",
        "s3://bucket/sets/%2e%2e/other",
        "s3://user@bucket/sets",
        "s3://bucket.evil/sets",
        "simplecache::s3://bucket/sets/one",
        "other/name",
    ):
        assert not read(path, kind="parquet"), path


def test_one_refused_override_prevents_all_overrides(fleets: str) -> None:
    overrides = ["fleet.providers.sky.endpoint=http://203.0.113.9", "stop.steps=7"]
    limits = Limits(role="admin")
    form = recipe_form(fleets, overrides, limits=limits)
    assert [refusal.key for refusal in form.refusals] == ["fleet.providers.sky.endpoint"]
    assert set(form.refusals) <= set(form.problems)
    values = {field.key: field.value for field in form.fields}
    assert (values["fleet.providers.sky.endpoint"], values["stop.steps"] == 7) == ("http://127.0.0.1:9", False)
    classes = {field.key: field.settable_by for field in form.fields}
    assert classes["fleet.providers.sky.endpoint"] == "recipe"
    assert (classes["fleet.pools.eu.max_nodes"], classes["stop.steps"]) == ("admin", "agent")
    with pytest.raises(NotPermitted):
        preflight_recipe(fleets, overrides, limits=limits)
    assert recipe_form(fleets, overrides).refusals == (), "the local user owns the machine"


def test_tools_and_environments_of_a_workflow_have_the_classes_of_their_options(tmp_path: Path) -> None:
    tools = '[{ kind = "calculator" }, { kind = "mcp", url = "http://127.0.0.1:1/mcp" }]'
    recipe = tmp_path / "tools.toml"
    recipe.write_text(
        f'extends = "smoke"\nname = "tools"\nflows.train.workflow = {{ kind = "tool_use", tools = {tools} }}'
    )
    key = "flows.train.workflow.tools"
    assert refused(str(recipe), f"{key}=[{{kind = 'calculator'}}]") == []
    assert refused(str(recipe), f"{key}=[{{kind = 'mcp', command = ['sh']}}]") == [f"{key}.0.command"]
    assert refused(str(recipe), f"{key}=[{{kind = 'functions', functions = ['os:x']}}]") == [f"{key}.0.functions"]
    weak = "[{kind = 'sandbox', sandbox = {kind = 'local', allow_weak = true}}]"
    assert refused(str(recipe), f"{key}={weak}") == [f"{key}.0.sandbox.kind", f"{key}.0.sandbox.allow_weak"]
