"""One running engine for many tests."""

from astraflow.contract.ids import Version
from astraflow.contract.nodes import EvaluationMode
from astraflow.contract.rollouts.generation import Generation, Sampling
from astraflow.contract.rollouts.trajectories import Float32Array, Int32Array
from astraflow.raas.engines.base import EngineGauges, LoadTimings, LogprobTolerance, PauseMode
from astraflow.raas.engines.server.engine import ServerEngine
from astraflow.weights.tensors import VerifiedWeights


class SharedEngine:
    """Engine of one test, on servers that the tests of a class share: starting them takes long. `close` ends the
    requests and leaves the servers running."""

    is_simulated = False
    evaluation_mode = EvaluationMode.RESERVED

    def __init__(self, engine: ServerEngine) -> None:
        """engine: started."""
        self.engine = engine

    @property
    def version(self) -> Version | None:
        """Version in service."""
        return self.engine.version

    @property
    def logprob_tolerance(self) -> LogprobTolerance:
        """Tolerance of the engine."""
        return self.engine.logprob_tolerance

    async def start(self) -> None:
        """Returns at once."""

    async def wait_failed(self) -> str:
        """Waits for a failure."""
        return await self.engine.wait_failed()

    def gauges(self) -> EngineGauges:
        """Returns the load."""
        return self.engine.gauges()

    async def generate(self, request_id: str, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Continues `prompt`."""
        return await self.engine.generate(request_id, prompt, sampling)

    async def score(self, tokens: Int32Array, scored_from: int) -> Float32Array:
        """Scores tokens."""
        return await self.engine.score(tokens, scored_from)

    async def load(self, weights: VerifiedWeights) -> LoadTimings:
        """Swaps the weights."""
        return await self.engine.load(weights)

    async def pause(self, mode: PauseMode) -> None:
        """Stops generation."""
        await self.engine.pause(mode)

    async def resume(self) -> None:
        """Resumes generation."""
        await self.engine.resume()

    async def abort(self, request_id: str) -> None:
        """Ends a request."""
        await self.engine.abort(request_id)

    async def close(self) -> None:
        """Ends all requests."""
        await self.engine.pause(PauseMode.ABORT)
        await self.engine.resume()
