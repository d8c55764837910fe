"""Adapter for environments that a service runs: see `python -m astraflow.environments.serve`."""

import os
from contextlib import AsyncExitStack, suppress
from typing import Annotated
from uuid import uuid4

from pydantic import Field, field_validator

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.environments import environments
from astraflow.environments.adapters.messages import decode_observation, too_long
from astraflow.environments.base import EnvironmentLimits, Observation
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.http.json_service import JsonClient, JsonRefused

TOKEN_VARIABLE = "ASTRAFLOW_ENVIRONMENT_TOKEN"  # noqa: S105 (the name of the variable, not the token)
_REFUSED = 422
"""HTTP status of input that the environment refuses."""


class HttpOptions(Config):
    """Service to use."""

    url: Annotated[str, SettableBy.RECIPE]
    """Address, such as `http://127.0.0.1:9100`. Requests carry the prompts: use TLS beyond a trusted network."""
    token_variable: Annotated[str, SettableBy.RECIPE] = TOKEN_VARIABLE
    """Environment variable of the node with the service's token; unset: none is sent."""
    concurrency: int = Field(default=64, ge=1, le=4096)
    """Episodes of this node that run at once."""
    begin_s: float = Field(default=60.0, gt=0)
    """Time for the begin of an episode, in seconds."""
    act_s: float = Field(default=30.0, gt=0)
    """Time for an action, in seconds."""

    @field_validator("url")
    @classmethod
    def _http(cls, url: str) -> str:
        if not url.startswith(("http://", "https://")):
            raise ValueError("give an address that starts with http:// or https://")
        return url


@environments.register("http", options=HttpOptions)
class HttpFactory:
    """Environments of a service that speaks `/begin`, `/act`, `/close` and `/check`."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._resources = AsyncExitStack()
        self._client = JsonClient(
            options.url, token=os.environ.get(options.token_variable, ""), connections=options.concurrency
        )

    @property
    def limits(self) -> EnvironmentLimits:
        """Limits of the options."""
        options = self._options
        return EnvironmentLimits(
            concurrency=options.concurrency, begin_s=options.begin_s + 1.0, act_s=options.act_s + 1.0
        )

    async def start(self) -> None:
        """Opens the client and checks the service. Raises: Unavailable."""
        await self._resources.enter_async_context(self._client)
        await self.check()

    async def close(self) -> None:
        """Closes the connections."""
        await self._resources.aclose()

    def make(self) -> "HttpEnvironment":
        """Returns a new environment."""
        return HttpEnvironment(self._client, self._options)

    async def check(self) -> None:
        """Asks the service to check its environment."""
        try:
            await self._client.post("/check", {}, limit_s=self._options.begin_s)
        except (JsonRefused, Unavailable) as problem:
            raise Unavailable(
                f"cannot use the environments of {self._options.url}: {problem}; start the service, and check address "
                "and token",
                code="environment.service_unavailable",
            ) from problem


class HttpEnvironment:
    """Environment of a service. A lost answer is requested again; the service does not repeat the action."""

    def __init__(self, client: JsonClient, options: HttpOptions) -> None:
        self._client = client
        self._options = options
        self._episode = uuid4().hex
        self._turn: int | None = None

    async def begin(self, prompt: Prompt, seed: int) -> Observation:
        """Begins the episode."""
        self._turn = 0
        values = {"episode": self._episode, "prompt_id": prompt.id, "fields": dict(prompt.fields), "seed": seed}
        return decode_observation(await self._post("/begin", values, self._options.begin_s))

    async def act(self, action: str) -> Observation:
        """Performs an action."""
        if self._turn is None:
            raise InvalidInput(
                "cannot act in the environment: it has not begun; call `begin` first", code="environment.not_begun"
            )
        if (answer := too_long(action)) is not None:
            return answer
        self._turn += 1
        values = {"episode": self._episode, "turn": self._turn, "action": action}
        return decode_observation(await self._post("/act", values, self._options.act_s))

    async def close(self) -> None:
        """Closes the episode. When the service cannot be reached, it closes the episode itself after some time."""
        turn, self._turn = self._turn, None
        if turn is None:
            return
        with suppress(RolloutFailed):  # the service closes unused episodes
            await self._post("/close", {"episode": self._episode}, self._options.act_s)

    async def _post(self, path: str, values: dict[str, object], limit_s: float) -> object:
        try:
            return await self._client.post(path, values, limit_s=limit_s)
        except JsonRefused as problem:
            if problem.status == _REFUSED:
                raise InvalidInput(str(problem), code=problem.code) from None
            raise RolloutFailed(str(problem), boundary=Boundary.ENVIRONMENT, code=problem.code) from None
        except Unavailable as problem:
            raise RolloutFailed(str(problem), boundary=Boundary.ENVIRONMENT, code=problem.code) from problem
