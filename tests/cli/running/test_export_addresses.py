"""Metric and trace addresses in `run.json`."""

from pathlib import Path

import pytest

from astraflow.cli.running.service_addresses import keda_address, traces_destination
from astraflow.contract.errors import InvalidInput
from astraflow.recipe.config import Recipe
from astraflow.recipe.loading import Check, load_recipe
from tests.errors import raises_code


def recipe(*overrides: str) -> Recipe:
    return load_recipe("smoke", overrides, check=Check.NONE)


def test_exports_are_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASTRAFLOW_TRACES", raising=False)
    assert keda_address(recipe()) == ""
    assert traces_destination(recipe(), Path("/runs/a")) == ""


def test_the_keda_address_comes_from_the_recipe_with_defaults() -> None:
    assert keda_address(recipe("dataflow.keda.port=9000")) == "127.0.0.1:9000"
    assert keda_address(recipe("dataflow.keda={}")) == "127.0.0.1:9465"
    with raises_code(InvalidInput, "config.invalid", "dataflow.keda"):
        keda_address(recipe("dataflow.keda.port=-1"))


def test_a_trace_folder_is_inside_the_run_and_the_variable_overrides_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ASTRAFLOW_TRACES", raising=False)
    assert traces_destination(recipe("tracing.to=traces"), Path("/runs/a")) == "/runs/a/traces#1"
    collector = recipe("tracing.to=http://collector:4318", "tracing.share=0.1")
    assert traces_destination(collector, Path("/runs/a")) == "http://collector:4318#0.1"
    monkeypatch.setenv("ASTRAFLOW_TRACES", "/elsewhere#0.5")
    assert traces_destination(collector, Path("/runs/a")) == "/elsewhere#0.5"
