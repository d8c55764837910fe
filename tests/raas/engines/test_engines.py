"""The mock engine passes the engine suite."""

import pytest

from astraflow.contract.rollouts.generation import Sampling
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.byte_tokenizer import ByteTokenizer
from astraflow.raas.engines import engines
from astraflow.raas.engines.base import Engine
from astraflow.testing.engines import Build, EngineSuite, Weights
from tests import make


def scripted() -> Engine:
    options = {"first_token_s": {"kind": "constant", "mean": 0.01}, "tokens": {"kind": "constant", "mean": 200}}
    return engines.build({"kind": "scripted", **options}, {"kind": "scripted"})


class TestScriptedEngine(EngineSuite):
    @pytest.fixture
    def build(self) -> Build:
        return scripted

    @pytest.fixture
    def weights(self) -> Weights:
        return make.verified_weights

    @pytest.fixture
    def prompt(self) -> Int32Array:
        return ByteTokenizer().encode_chat([{"role": "user", "content": "say right"}])

    @pytest.fixture
    def long(self) -> Sampling:
        return Sampling(max_new_tokens=200, stop_tokens=ByteTokenizer().stop_tokens)
