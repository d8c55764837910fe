"""Interface of a dialect: routes and formats of one server program."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from astraflow.client.model_server import KEPT_OPEN_S, ServerClient
from astraflow.contract.rollouts.generation import Generation, Sampling
from astraflow.contract.rollouts.trajectories import Float32Array, Int32Array
from astraflow.raas.engines.base import EngineGauges, PauseMode
from astraflow.raas.engines.server.environments import Environment
from astraflow.raas.engines.server.options import ServerOptions

MODEL_NAME = "policy"
"""Name under which a server serves its model."""

CONTROL_S = 60.0
"""Time limit of a control request, such as a pause. Seconds."""
RELOAD_S = 600.0
"""Time limit of a reload or patch. Seconds."""
SERVER_KEEPS_OPEN_S = round(1.5 * KEPT_OPEN_S)
"""Time for which servers keep idle connections, 5 by default: on a busy machine a load met the end of its connection,
and the server was restarted. Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Command of a server and its environment variables."""

    argv: tuple[str, ...]
    variables: Mapping[str, str]
    """Variables added to a minimal environment: no secrets of the node reach the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLoad:
    """Load of one server."""

    gauges: EngineGauges
    tokens_total: float
    """Tokens generated since the start of the server; increases while it makes progress."""


class Dialect(Protocol):
    """Translates between the engine's interface and one server program."""

    kind: str
    """Kind of the engine: `sglang` or `vllm`."""

    def launch(
        self, environment: Environment, options: ServerOptions, *, model: Path, port: int, key: str, devices: str
    ) -> Launch:
        """Returns the command that starts a server. model: folder with configuration and tokenizer, without weights.

        key: passed as an environment variable, which only the user of the process can read.
        """

    async def is_up(self, client: ServerClient) -> bool:
        """Returns whether the server answers control requests."""

    async def generate(
        self, client: ServerClient, request_ids: Sequence[str], prompt: Int32Array, sampling: Sampling
    ) -> list[Generation]:
        """Continues a prompt, once for each id, in one HTTP request; returns when all are complete.

        Raises: ServerRefused, ServerUnreachable, CorruptData for an invalid answer.
        """

    async def score(
        self, client: ServerClient, tokens: Int32Array, scored_from: int, *, limit_s: float | None
    ) -> Float32Array:
        """Returns the logprobs at temperature 1 of `tokens[scored_from:]`; `limit_s` None: the caller has a limit."""

    async def abort(self, client: ServerClient, request_ids: Sequence[str]) -> None:
        """Ends requests at once; their `generate` returns with the tokens so far."""

    async def pause(self, client: ServerClient, mode: PauseMode) -> None:
        """Stops generation; returns when no request runs."""

    async def resume(self, client: ServerClient) -> None:
        """Resumes generation; may be called again when it has succeeded."""

    async def reload(self, client: ServerClient, folder: Path, version: str, *, learn_mapping: bool) -> None:
        """Replaces all weights of a paused server by those of `folder / "model.safetensors"`, and discards the cache.

        learn_mapping: prepares later patches. Raises: ServerRefused; the weights are then unknown.
        """

    async def load_adapter(self, client: ServerClient, folder: Path, version: str) -> None:
        """Loads adapters in addition to the base of a paused server, under a new name, and unloads those before.

        Later requests of `client` use them. Raises: ServerRefused; the adapters in use are then unknown.
        """

    def can_patch(self, environment: Environment, options: ServerOptions) -> bool:
        """Returns whether `patch` is supported."""

    async def patch(self, client: ServerClient, patch: Path, version: str, *, resumes: bool) -> None:
        """Writes the changes in `patch` (`patch_file.py`) into the weights of a paused server, discards the cache, and
        resumes generation if `resumes`.

        Raises: ServerRefused when the server has no weight mapping, or a change is outside of it; the weights are then
        unknown.
        """

    async def checksum(self, client: ServerClient) -> str:
        """Returns a checksum over the served weights of all ranks."""

    async def load(self, client: ServerClient) -> ServerLoad:
        """Returns the current load."""
