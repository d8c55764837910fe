"""Errors and wrong results of the plugins of an algorithm end training with the plugin and the line of its code."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from astraflow.algorithms.base import advantages, token_advantages
from astraflow.algorithms.losses import losses
from astraflow.algorithms.tokens import RowData, TokenData
from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.runtime.config.base import Config
from astraflow.trainer.step.planner import checked_rows, plugin_errors
from astraflow.trainer.step.step_limits import MAX_SKIPPED_STEPS, MAX_UNRECORDED_STEPS
from tests.errors import raises_code
from tests.trainer.backends.test_local import batch, local


class FaultOptions(Config):
    """Fault of the plugin."""

    fault: str = "raise"


class FaultyAdvantage:
    """Fails, or returns something wrong."""

    def __init__(self, options: FaultOptions) -> None:
        self._fault = options.fault

    def __call__(self, values: Tensor, rows: RowData) -> Any:
        results = {"nan": values * float("nan"), "shape": values[:-1], "none": None, "number": 1.0}
        if self._fault == "raise":
            raise NameError("name 'reward' is not defined")
        return results[self._fault]


class FaultyTokenAdvantage:
    """Has the parameters of a row's advantage, or returns advantages that are not finite."""

    needs: frozenset[Any] = frozenset()

    def __init__(self, options: FaultOptions) -> None:
        self._fault = options.fault

    def __call__(self, tokens: TokenData, rows: RowData, *more: Any) -> TokenData:
        if self._fault == "raise":
            raise TypeError("missing 1 required positional argument: 'weights'")
        return replace(tokens, advantages=tokens.advantages * float("nan"))


class FaultyLoss:
    """Has a misspelt call."""

    needs: frozenset[Any] = frozenset()

    def __init__(self, options: FaultOptions) -> None:
        pass

    def prepare(self, *_: Any) -> None:
        """Needs nothing."""

    def __call__(self, scores: Any, *_: Any) -> Any:
        return scores.logprobs.misspelt()


@pytest.fixture(autouse=True)
def faulty_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers the plugins for the duration of a test: others compare all plugins."""
    monkeypatch.setitem(advantages._registered, "test_faulty", (FaultyAdvantage, FaultOptions))
    monkeypatch.setitem(token_advantages._registered, "test_faulty_tokens", (FaultyTokenAdvantage, FaultOptions))
    monkeypatch.setitem(losses._registered, "test_faulty_loss", (FaultyLoss, FaultOptions))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raise", ("NameError", "test_plugin_errors.py, line")),
        ("nan", ("not finite",)),
        ("shape", ("shape (11,)", "12 rows")),
        ("none", ("NoneType",)),
        ("number", ("float",)),
    ],
)
def test_a_faulty_advantage_is_named(fault: str, words: tuple[str, ...]) -> None:
    backend = local({"advantages": [{"kind": "test_faulty", "fault": fault}]})

    with raises_code(InvalidInput, "algorithm.plugin_failed", "the advantage 'test_faulty'", *words):
        backend.step(batch())


def test_a_faulty_token_advantage_is_named() -> None:
    backend = local({"token_advantages": [{"kind": "test_faulty_tokens"}]})

    with raises_code(InvalidInput, "algorithm.plugin_failed", "the token advantage 'test_faulty_tokens'", "TypeError"):
        backend.step(batch())


def test_a_faulty_loss_is_named() -> None:
    backend = local({"loss": {"kind": "test_faulty_loss"}})

    with raises_code(InvalidInput, "algorithm.plugin_failed", "the loss 'test_faulty_loss'"):
        backend.step(batch())


def test_training_ends_after_too_many_steps_without_an_update() -> None:
    backend = local({"token_advantages": [{"kind": "test_faulty_tokens", "fault": "nan"}]})

    for step in range(1, MAX_SKIPPED_STEPS):
        assert backend.step(batch(step))["skipped"] == 1
    with raises_code(InvalidInput, "trainer.not_finite"):
        backend.step(batch(MAX_SKIPPED_STEPS))


def test_training_with_centering_ends_after_too_many_steps_without_a_recorded_head() -> None:
    backend = local({"loss": {"kind": "reinforce", "centering": 4}})

    for step in range(1, MAX_UNRECORDED_STEPS):
        assert backend.step(batch(step))["outside_head"] == 1
    with raises_code(InvalidInput, "algorithm.no_top_tokens"):
        backend.step(batch(MAX_UNRECORDED_STEPS))


@pytest.mark.parametrize("problem", [torch.OutOfMemoryError("full"), MemoryError(), Unavailable("gone", code="x.gone")])
def test_errors_that_a_restart_may_cure_stay_as_they_are(problem: Exception) -> None:
    with pytest.raises(type(problem)) as caught, plugin_errors("the loss 'ppo'"):
        raise problem
    assert caught.value is problem


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_each_advantage_receives_float64_whatever_type_the_one_before_returned(dtype: torch.dtype) -> None:
    assert checked_rows(torch.ones(3, dtype=dtype), 3).dtype is torch.float64
