"""Overrides from the page: every setting has a trust class, and a setting without one is rejected."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

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
from astraflow.rewards import group_rewards
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy, declared_class, settable_by, speaks_of_reach
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
    "AlgorithmConfig.teachers",
    "TeacherConfig.model",
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
    "ActOptions.environment",
    "ToolUseOptions.tools",
    "VersusOptions.game",
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
    """Yields the fields that an agent cannot set only because they declare no class, of the model and nested models."""
    for name, info in model.model_fields.items():
        inner = list(models_in(info.annotation))
        if declared_class(model, (name,)) is None:
            if not inner and settable_by(model, (name,)) is SettableBy.RECIPE:
                yield f"{model.__name__}.{name}"
            for nested_model in inner:
                yield from undeclared(nested_model)


def every_registry() -> list[Registry[Any]]:
    """Returns the registries of all plugins of a recipe, those inside the options of others included."""
    known = {registry.noun: registry for _, registry, _ in plugin_specs(load_recipe("smoke"))}
    known[group_rewards.noun] = group_rewards
    pending = list(known.values())
    while pending:
        registry = pending.pop()
        for kind in registry.built_in_kinds():
            for option in registry.options(kind).model_fields:
                inner = registry.inner_registry(kind, option)
                if inner is not None and inner.noun not in known:
                    known[inner.noun] = inner
                    pending.append(inner)
    return list(known.values())


def test_every_setting_but_a_plain_number_declares_its_trust_class() -> None:
    registries = every_registry()
    assert {"environment", "tool", "sandbox", "program", "game", group_rewards.noun} <= {
        each.noun for each in registries
    }
    models: list[type[BaseModel]] = [Recipe, DataflowConfig, TrainerConfig]
    models += [registry.options(kind) for registry in registries for kind in registry.built_in_kinds()]
    undeclared_names = {name for model in models for name in undeclared(model)}
    assert undeclared_names - OPEN_TABLES == set(), (
        "declare Annotated[..., SettableBy.RECIPE] on these fields if they say what a process reaches, as whom it runs "
        "or what contains it, else SettableBy.AGENT or another class"
    )


def test_no_setting_that_agents_may_override_speaks_of_reach() -> None:
    reviewed = {
        "allow_truncated_sampling": "sampling",
        "command_s": "a time limit",
        "device": "`cpu` or `cuda`",
        "has_access": "the tool `access` of documents of the same server",
        "program_wall_s": "a time limit",
        "weight_mode": "of a loss",
    }
    by_agents = {
        name
        for registry in every_registry()
        for kind in registry.built_in_kinds()
        for name in registry.options(kind).model_fields
        if settable_by(registry.options(kind), (name,)) is SettableBy.AGENT
        and (speaks_of_reach(name) or "level" in name)
    }
    assert by_agents == reviewed.keys()


def test_every_fleet_table_has_a_trust_class() -> None:
    covered = {pattern[0] for pattern, _ in FLEET_CLASSES if pattern}
    only_the_recipe = {"cluster", "database", "providers"}
    assert covered | only_the_recipe == set(FleetConfig.model_fields)


def test_settings_without_a_trust_class_cannot_be_overridden_unless_they_are_plain_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Options(Config):
        place: str = ""
        declared: Annotated[str, SettableBy.AGENT] = ""
        table: dict[str, str] = {}  # noqa: RUF012 (pydantic copies it)
        count: int = 1
        has_network: bool = False
        runner: Literal["sandbox", "docker"] = "sandbox"
        proxy_port: int | None = None
        user_ids: tuple[int, ...] = ()

    monkeypatch.setitem(datasets._registered, "third", (object, Options))
    kind = 'flows.train.dataset={kind = "third"}'
    key = "flows.train.dataset"
    assert refused("smoke", kind) == []
    assert refused("smoke", kind, f"{key}.count=2", f"{key}.declared=x") == []
    assert refused("smoke", kind, f"{key}.place=x", f"{key}.table.a=x") == [f"{key}.place", f"{key}.table.a"]
    assert refused("smoke", f'{key}={{kind = "third", place = "x"}}') == [f"{key}.place"]
    for unreviewed in ("has_network=true", "runner=docker", "proxy_port=22", "user_ids=[0]"):
        assert refused("smoke", kind, f"{key}.{unreviewed}", role="admin") == [f"{key}.{unreviewed.partition('=')[0]}"]
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
        ("fleet.limits.nodes=9", {"admin"}),
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
    assert refused(str(recipe), f"{key}=[{{kind = 'mcp', command = ['sh']}}]") == [f"{key}.0.command", f"{key}.0.url"]
    assert refused(str(recipe), f"{key}=[{{kind = 'functions', functions = ['os:x']}}]") == [f"{key}.0.functions"]
    weak = "[{kind = 'sandbox', sandbox = {kind = 'local', allow_weak = true}}]"
    assert refused(str(recipe), f"{key}={weak}") == [f"{key}.0.sandbox.kind", f"{key}.0.sandbox.allow_weak"]


ISOLATED = """
extends = "smoke"
name = "isolated"
flows.train.reward = { kind = "code_tests", sandbox = { kind = "local", level = "namespaces" } }

[flows.train.workflow]
kind = "act"
[flows.train.workflow.environment]
kind = "terminal"
is_sample = true
runner = "kubernetes"
runtime_class = "gvisor"
sandbox = { kind = "local" }

[evaluations.agent]
dataset = { kind = "scripted" }
reward = { kind = "exact_match" }
workflow = { kind = "agent", program = { kind = "container", image = "a", command = ["b"] } }

[evaluations.tools]
dataset = { kind = "scripted" }
reward = { kind = "exact_match" }
workflow.kind = "tool_use"
workflow.tools = [{ kind = "sandbox", sandbox = { kind = "sandbox_fusion", url = "http://fusion" } }]
"""
ENVIRONMENT, PROGRAM, TOOL = (
    "flows.train.workflow.environment", "evaluations.agent.workflow.program", "evaluations.tools.workflow.tools.0"
)  # fmt: skip


@pytest.mark.parametrize("role", ["agent", "operator", "admin"])
@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        ([f"{ENVIRONMENT}.has_network=true"], [f"{ENVIRONMENT}.has_network"]),
        ([f"{ENVIRONMENT}.runner=docker"], [f"{ENVIRONMENT}.runner"]),
        ([f"{ENVIRONMENT}.sandbox.level=none"], [f"{ENVIRONMENT}.sandbox.level"]),
        ([f"{ENVIRONMENT}.sandbox.kind=sandbox_fusion"], [f"{ENVIRONMENT}.sandbox.kind"]),
        ([f"{ENVIRONMENT}.sandbox.disk_bytes=99999999999"], [f"{ENVIRONMENT}.sandbox.disk_bytes"]),
        ([f"{ENVIRONMENT}.namespace=kube-system"], [f"{ENVIRONMENT}.namespace"]),
        ([f"{ENVIRONMENT}.path=/root"], [f"{ENVIRONMENT}.path"]),
        (
            [f"{ENVIRONMENT}={{kind = 'textcraft'}}", f"{ENVIRONMENT}={{kind = 'terminal', is_sample = true}}"],
            [f"{ENVIRONMENT}.runner", f"{ENVIRONMENT}.runtime_class", f"{ENVIRONMENT}.sandbox"],
        ),
        (["flows.train.reward.sandbox.allow_weak=true"], ["flows.train.reward.sandbox.allow_weak"]),
        (["flows.train.reward.sandbox.workers=900"], ["flows.train.reward.sandbox.workers"]),
        ([f"{PROGRAM}.kind=command"], [f"{PROGRAM}.kind"]),
        ([f"{PROGRAM}.runner=podman"], [f"{PROGRAM}.runner"]),
        ([f"{PROGRAM}.memory_mib=64"], [f"{PROGRAM}.memory_mib"]),
        (["evaluations.tools.workflow.tools=[{kind = 'sandbox'}]"], [f"{TOOL}.sandbox"]),
        (
            ["flows.train.workflow={kind = 'act', environment = {kind = 'terminal', has_network = true}}"],
            [f"{ENVIRONMENT}.has_network"],
        ),
        (
            ["flows.new.workflow={kind = 'act', environment = {kind = 'terminal', has_network = true}}"],
            ["flows.new.workflow.environment.has_network"],
        ),
        (["dataflow.metrics=1"], ["dataflow.metrics"]),
        (["nodes.pull.use_shared_memory=true"], []),
        (["nodes.pull.use_shared_memory=false"], ["nodes.pull.use_shared_memory"]),
    ],
)
def test_no_role_can_override_what_contains_a_program(
    tmp_path: Path, overrides: list[str], keys: list[str], role: str
) -> None:
    recipe = tmp_path / "isolated.toml"
    recipe.write_text(ISOLATED)
    assert refused(str(recipe), *overrides, role=role) == keys


@pytest.mark.parametrize("option", ["concurrency=4", "request_timeout_s=30", "attempts=2"])
def test_agents_can_override_limits_of_a_teachers_server(tmp_path: Path, option: str) -> None:
    recipe = tmp_path / "distilled.toml"
    recipe.write_text(
        """extends = "smoke"
name = "distilled"
policies.solver.algorithm.teachers.large.endpoint = { base_url = "http://127.0.0.1:9", model = "large" }
policies.solver.algorithm.token_advantages = [{ kind = "distillation" }]
"""
    )
    key = "policies.solver.algorithm.teachers.large.endpoint"
    assert refused(str(recipe), f"{key}.{option}", role="agent") == []
    assert refused(str(recipe), f"{key}.model='x'", role="operator") == [f"{key}.model"]


def test_agents_can_override_limits_of_an_environment_and_its_kind(tmp_path: Path) -> None:
    recipe = tmp_path / "isolated.toml"
    recipe.write_text(ISOLATED)
    allowed = [f"{ENVIRONMENT}.command_s=9", "flows.train.reward.case_cpu_s=2", "flows.train.workflow.max_turns=3"]
    assert refused(str(recipe), *allowed, role="agent") == []
    assert refused(str(recipe), f"{ENVIRONMENT}={{kind = 'textcraft', max_steps = 3}}", role="agent") == []
    assert refused(str(recipe), "flows.train.reward.memory_mib=900", role="agent") == ["flows.train.reward.memory_mib"]
    assert refused(str(recipe), "flows.train.reward.memory_mib=900", role="operator") == []
