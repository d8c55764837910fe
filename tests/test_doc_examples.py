"""Examples in documents work: Python blocks are run, TOML blocks are valid recipes or configurations of a service.

`tests/test_docs.py` checks commands. Nothing here needs a GPU, a network or a running service.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from inspect import CO_COROUTINE
from pathlib import Path
from typing import Any

import pytest

from astraflow.dataflow.config import FlowConfig
from astraflow.recipe.config import Recipe, dataflow_config, trainer_config
from astraflow.recipe.plugins import plugin_specs
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.toml import Values, merge_tables
from astraflow.tinker.config import TinkerOptions
from docs.generate.plugin_slots import ALGORITHM_SLOTS, SLOTS
from maintainer.agent.config import MaintainerConfig
from maintainer.fleet.config import FleetConfig
from web.accounts.openid_provider import OpenIdConfig
from web.alerting.mail import MailConfig
from web.alerting.rules import RuleSpec

DOCS = Path(__file__).parents[1] / "docs"

EXCERPTS = ("explanation/weights.md", "how-to/own-trainer.md", "how-to/workflows.md")
"""Documents whose Python blocks need a running service or a plugin of the reader: only their imports are run."""

TESTED_ELSEWHERE = ("how-to/algorithms.md",)
"""`tests/algorithms/test_reference.py` runs the Python block."""

PLAIN = ("project",)
"""Tables of other programs' files."""

WORKFLOW_OPTIONS = {"tools": "tool_use", "environment": "act"}
"""Option of a workflow that a document shows alone -> the workflow."""

POLICY = {"model": {"kind": "tiny"}, "backend": {"kind": "scripted"}}
FLOW = {"dataset": {"kind": "scripted"}, "workflow": {"kind": "single_turn"}}


def blocks(language: str) -> list[Any]:
    """Returns the blocks of a language in all documents, as parameters of a test."""
    parameters = []
    for document in sorted(DOCS.rglob("*.md")):
        name = str(document.relative_to(DOCS))
        texts = re.findall(rf"^```{language}\n(.*?)^```$", document.read_text(), flags=re.M | re.S)
        for number, text in enumerate(texts, 1):
            parameters.append(pytest.param(name, text, id=f"{name}-{number}"))
    return parameters


@pytest.fixture
def own_plugins() -> Iterator[None]:
    """Removes the plugins that an example registers, and puts back those that it replaces."""
    registries = [*(slot.registry for slot in SLOTS), *ALGORITHM_SLOTS]
    before = [dict(registry._registered) for registry in registries]
    yield
    for registry, plugins in zip(registries, before, strict=True):
        built_in = {kind: plugin for kind, plugin in registry._registered.items() if kind in registry._built_in}
        registry._registered = {**built_in, **plugins}


@pytest.mark.usefixtures("own_plugins")
@pytest.mark.parametrize(("document", "text"), blocks("python"))
def test_python_blocks_run_without_an_error(document: str, text: str) -> None:
    code = compile(text, document, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if document in EXCERPTS:
        imports: list[ast.stmt] = [
            node for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        code = compile(ast.Module(body=imports, type_ignores=[]), document, "exec")
    assert document in TESTED_ELSEWHERE or not code.co_flags & CO_COROUTINE, "`exec` would not run it"
    if document not in TESTED_ELSEWHERE:
        exec(code, {"__name__": "example"})  # noqa: S102 (a document of this project)


@pytest.mark.parametrize(("document", "text"), blocks("toml"))
def test_toml_blocks_are_valid(document: str, text: str) -> None:
    values = tomllib.loads(text)
    values.pop("extends", None)
    keys = values.keys()
    if keys <= Recipe.model_fields.keys():
        check_recipe(values, document)
    elif keys <= FlowConfig.model_fields.keys() | WORKFLOW_OPTIONS.keys():
        check_recipe({"flows": {"train": flow_of(values)}}, document)
    elif keys <= FleetConfig.model_fields.keys():
        check_fleet(values)
    elif keys == {"rule"}:
        assert [RuleSpec.parse(rule, where=document) for rule in values["rule"]]
    elif "sender" in keys:
        MailConfig.parse(values, where=document)
    elif not keys <= set(PLAIN):
        known: dict[str, type[Config]] = {"issuer": OpenIdConfig, "tenants": TinkerOptions}
        options = next((known[key] for key in known if key in keys), MaintainerConfig)
        options.parse(values, where=document)


def flow_of(values: Values) -> Values:
    """Returns a flow; an option that belongs to a workflow is put into one."""
    flow = {key: value for key, value in values.items() if key in FlowConfig.model_fields}
    for key in values.keys() & WORKFLOW_OPTIONS.keys():
        flow["workflow"] = {"kind": WORKFLOW_OPTIONS[key], key: values[key]}
    return flow


def check_recipe(values: Values, document: str) -> None:
    """Completes the fragment to a recipe and validates all tables and plugins of it. Raises: InvalidInput."""
    flows = {name: flow_with_kind(flow) for name, flow in values.get("flows", {}).items()}
    complete: Values = {
        "name": "example",
        "policies": dict.fromkeys(values.get("policies", {"solver": {}}), POLICY),
        "flows": dict.fromkeys(flows or {"train": {}}, FLOW),
        "nodes": {"engine": {"kind": "scripted"}},
    }
    recipe = Recipe.parse(merge_tables(complete, {**values, "flows": flows}), where=document)
    dataflow_config(recipe, run="example")
    for policy in recipe.policies:
        trainer_config(recipe, policy)
    registered = set(re.findall(r'\.register\("(\w+)"', (DOCS / document).read_text()))
    for _, registry, spec in plugin_specs(recipe):
        if spec["kind"] not in registered and not registry.is_heavy(spec["kind"]):
            registry.check(spec)


def flow_with_kind(flow: Values) -> Values:
    """Returns the flow with the kind of a workflow of which a document shows the program only."""
    if "program" in flow.get("workflow", {}) and "kind" not in flow["workflow"]:
        return {**flow, "workflow": {"kind": "agent", **flow["workflow"]}}
    return flow


def check_fleet(values: Values) -> None:
    """Validates providers and pools. Raises: InvalidInput."""
    for provider in values.get("providers", {}).values():
        if "known_hosts" in provider:
            provider["known_hosts"] = __file__  # a file that exists
    FleetConfig.parse({"providers": {"here": {"kind": "local_process"}}, **values}, where="fleet")
