"""Requests of an engine: their servers, their aborts, and their repetition on another server."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count

import numpy as np

from astraflow.client.model_server import ServerClient, ServerRefused, ServerUnreachable
from astraflow.contract.errors import AstraFlowError, Conflict, CorruptData, InvalidInput, Unavailable
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling, joined
from astraflow.contract.rollouts.trajectories import Float32Array, Int32Array
from astraflow.raas.engines.continuations import Decode, continuable
from astraflow.raas.engines.server.dialect import Dialect
from astraflow.raas.engines.server.prefix_affinity import PrefixAffinity, ServerState
from astraflow.raas.engines.server.replica import Replica, ServerLost
from astraflow.raas.engines.server.request_groups import RequestGroups

LOSS_DETECTION_S = 10.0
"""Seconds from a failed request to the detection that its server is lost."""
SCORE_S = 60.0
"""Time limit of a score. Seconds."""
_POLL_S = 0.05
_ABORTED = Generation(tokens=np.empty(0, np.int32), logprobs=np.empty(0, np.float32), spans=(), finish=Finish.ABORT)


class RequestRouter:
    """Sends each request to the server that has computed most of its prompt or has the fewest requests, and again when
    its server is lost or aborted it for a load."""

    def __init__(
        self, dialect: Dialect, replicas: Sequence[Replica], *, is_open: asyncio.Event, decode: Decode
    ) -> None:
        """replicas: servers of the engine, which may be added later. is_open: clear while the engine is paused.
        decode: called in a thread."""
        self._dialect = dialect
        self._decode = decode
        self._groups = RequestGroups(dialect)
        self.affinity = PrefixAffinity()
        self._replicas = replicas
        self._is_open = is_open
        self._is_closed = False
        self._in_flight: dict[str, Replica | None] = {}
        """Server of each request, by its id in the servers; None while it waits for one."""
        self._aborted: set[str] = set()
        self._request_numbers = count()
        self._wire_ids: dict[str, str] = {}
        """Id in the servers of each request in flight, by the caller's id."""

    @property
    def wire_ids(self) -> tuple[str, ...]:
        """Ids in the servers of the requests in flight."""
        return tuple(self._in_flight)

    async def generate(self, request_id: str, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Continues `prompt`.

        Raises: ServerRefused when the server refuses the request, InvalidInput if that has a grammar; Conflict for an
        id that is in flight; Unavailable when the engine has failed.
        """
        if request_id in self._wire_ids:
            raise Conflict(
                f"cannot generate: request {request_id!r} is in flight already; give every request its own id",
                code="engine.duplicate_request",
            )
        wire_id = f"{request_id}#{next(self._request_numbers)}"
        self._wire_ids[request_id] = wire_id
        self._in_flight[wire_id] = None
        try:
            return await self._complete(wire_id, prompt, sampling)
        finally:
            del self._wire_ids[request_id], self._in_flight[wire_id]
            self._aborted.discard(wire_id)

    async def score(self, tokens: Int32Array, scored_from: int) -> Float32Array:
        """Returns the logprobs of `tokens[scored_from:]`; waits while paused. Raises: InvalidInput, Unavailable."""
        if not 1 <= scored_from < len(tokens):
            raise InvalidInput(
                f"cannot score {len(tokens)} tokens from {scored_from}: a scored token needs a prefix; give at least "
                "one token before and one after the start",
                code="engine.invalid_score_range",
            )
        replica = await self._next_replica()
        scores = await self._dialect.score(replica.client, tokens, scored_from, limit_s=SCORE_S)
        if len(scores) != len(tokens) - scored_from:
            raise CorruptData(
                f"cannot score: the server returned {len(scores)} of {len(tokens) - scored_from} logprobs",
                code="engine.invalid_answer",
            )
        return scores

    async def abort(self, request_id: str) -> None:
        """Ends one request at once; unknown ids are ignored."""
        wire_id = self._wire_ids.get(request_id)
        if wire_id is not None:
            await self._abort(wire_id)

    def mark_all_aborted(self) -> None:
        """Makes requests in flight return when their servers answer or are asked next."""
        self._aborted.update(self._in_flight)

    def close(self) -> None:
        """Ends all requests; no server gets further requests."""
        self._is_closed = True

    async def _complete(self, wire_id: str, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Returns the whole generation, over lost servers and aborts by a server."""
        so_far: Generation | None = None
        while True:
            begun = so_far and await self._continuable(so_far, sampling)
            begins, rest = _remaining(prompt, sampling, begun)
            replica = await self._next_replica_or_abort(wire_id, begins)
            if replica is None:
                return so_far or _ABORTED
            part = await self._generate_on(replica, wire_id, begins, rest)
            if part is None:
                continue
            so_far = joined(begun, part) if begun is not None else part
            is_complete = part.finish is not Finish.ABORT or len(so_far.tokens) >= sampling.max_new_tokens
            if is_complete or self._is_aborted(wire_id):
                return so_far

    async def _continuable(self, so_far: Generation, sampling: Sampling) -> Generation | None:
        """Returns the part of an aborted generation that another request can continue, as `continuable`."""
        if not sampling.stop_strings:  # nothing is decoded
            return continuable(so_far, sampling, self._decode)
        return await asyncio.to_thread(continuable, so_far, sampling, self._decode)

    async def _generate_on(
        self, replica: Replica, wire_id: str, prompt: Int32Array, sampling: Sampling
    ) -> Generation | None:
        """Generates on one server; returns None when the request must be sent again. Aborts it there on cancelling."""
        self._in_flight[wire_id] = replica
        replica.in_flight += 1
        client: ServerClient | None = None
        adapter = ""
        try:
            client = replica.client
            adapter = client.adapter
            part = await self._groups.generate(client, wire_id, prompt, sampling)
            if len(self._replicas) > 1:
                self.affinity.add(replica.number, np.concatenate([prompt, part.tokens]))
            return part
        except asyncio.CancelledError:
            with suppress(AstraFlowError, TimeoutError):  # here, because only `_in_flight` names the server
                await asyncio.shield(self._abort(wire_id))
            raise
        except (ServerLost, ServerUnreachable, ServerRefused) as problem:
            if client is not None and client.adapter != adapter:
                return None  # it named the adapters of the version before
            if isinstance(problem, ServerRefused) and problem.status < 500:
                if sampling.json_schema or sampling.regex:  # each server knows others: its answer is the check
                    raise InvalidInput(
                        f"cannot sample by a grammar: {problem}; correct it", code="engine.invalid_grammar"
                    ) from problem
                raise
            if not await replica.has_been_lost(LOSS_DETECTION_S) and not self._is_closed:
                raise
            return None  # the restarted server, or another one, computes it again
        finally:
            replica.in_flight -= 1
            self._in_flight[wire_id] = None

    async def _next_replica_or_abort(self, wire_id: str, prompt: Int32Array) -> Replica | None:
        """Returns the server for a prompt, when one serves; None when the request was aborted meanwhile."""
        while not self._is_aborted(wire_id):
            serving = self._serving_replicas()
            if len(serving) == 1 == len(self._replicas):
                return serving[0]
            if serving:
                return self._chosen(prompt, serving)
            await asyncio.sleep(_POLL_S)
        return None

    def _chosen(self, prompt: Int32Array, serving: Sequence[Replica]) -> Replica:
        states = [
            ServerState(
                number=replica.number,
                in_flight=replica.in_flight,
                cache_used=replica.gauges.cache_used,
                cache_tokens=replica.gauges.cache_tokens,
            )
            for replica in serving
        ]
        number = self.affinity.choose(prompt, states)
        return next(replica for replica in serving if replica.number == number)

    async def _next_replica(self) -> Replica:
        """Returns the server with the fewest requests; waits while the engine is paused or all servers restart.

        Raises: Unavailable when it has failed or ends.
        """
        while not self._is_closed:
            if serving := self._serving_replicas():
                return min(serving, key=lambda replica: replica.in_flight)
            await asyncio.sleep(_POLL_S)
        raise Unavailable(
            "cannot run the request: the engine is closed; send it to another engine", code="engine.closed"
        )

    def _serving_replicas(self) -> list[Replica]:
        """Returns the serving servers; none while the engine is paused. Raises: Unavailable when it has failed."""
        serving = [replica for replica in self._replicas if replica.serving.is_set()]
        if serving and self._is_open.is_set():
            return serving
        failed = [replica.failed.result() for replica in self._replicas if replica.failed.done()]
        if len(failed) == len(self._replicas):
            raise Unavailable(f"cannot run the request: {failed[0]}", code="engine.failed")
        return []

    def _is_aborted(self, wire_id: str) -> bool:
        return wire_id in self._aborted or self._is_closed

    async def _abort(self, wire_id: str) -> None:
        self._aborted.add(wire_id)
        replica = self._in_flight.get(wire_id)
        if replica is not None and replica.serving.is_set():
            await self._dialect.abort(replica.client, [wire_id])


def _remaining(prompt: Int32Array, sampling: Sampling, begun: Generation | None) -> tuple[Int32Array, Sampling]:
    """Returns prompt and sampling for the rest of a request that a server aborted."""
    if begun is None:
        return prompt, sampling
    left = sampling.max_new_tokens - len(begun.tokens)
    return np.concatenate([prompt, begun.tokens]), replace(sampling, max_new_tokens=left)
