"""The server: checks requests of tenants, stores them, hands them to the executor, and answers futures.

    request ─► checked ─► stored ─► executor, a pass at a time ─► answer stored ─► future answered

All of it but the passes runs in the event loop. After a restart, stored requests without an answer are computed.
"""

import asyncio
import json
import secrets
import shutil
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from astraflow.contract.errors import AstraFlowError, Conflict, InvalidInput, RateLimited
from astraflow.tinker import requests as api
from astraflow.tinker.base_models import SharedBase, chosen_targets, find_base
from astraflow.tinker.catalogue import Catalogue
from astraflow.tinker.config import TinkerOptions
from astraflow.tinker.executor import Executor
from astraflow.tinker.samplers import Samplers
from astraflow.tinker.store import (
    ModelRow,
    RequestRow,
    SessionRow,
    Store,
    checkpoint_folder,
    folder_bytes,
    metadata_json,
    states_folder,
    tenant_folder,
)
from astraflow.tinker.tenants import AuditLog, Tenants
from astraflow.tinker.training_data import parse_request, training_data
from astraflow.tinker.work import SAVING, ModelWork, Outcome, Workshop
from astraflow.trainer.backends.state.adapters import AdapterRecord

CREATED = 1
"""Number of the request that created a model; those of its client follow."""
SILENT_S = 7 * 86_400.0
"""Time after which a session whose client is not heard is closed, when the tenant opens another one. Seconds."""


class TinkerServer:
    """State of the server. For the event loop's thread."""

    def __init__(self, options: TinkerOptions, folder: Path, bases: Mapping[str, SharedBase]) -> None:
        """folder: holds keys, checkpoints and the store. Raises: InvalidInput."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.tenants = Tenants(folder / "keys", options.tenants)
        self.audit = AuditLog(folder / "audit.jsonl")
        self._options = options
        self._folder = folder
        self._bases = bases
        self._store = Store(folder / "tinker.sqlite")
        self._workshop = Workshop(
            folder=folder, bases=bases, pass_tokens=options.pass_tokens, check_disk=self._check_disk
        )
        shares = {name: tenant.share for name, tenant in options.tenants.items()}
        self._executor = Executor(shares, on_start=lambda: torch.set_num_threads(options.threads))
        self.samplers = Samplers(folder, bases, self._store, self._executor, self._keep)
        self.catalogue = Catalogue(folder, bases, self._store, self.audit, options.tenants)
        self._loaded: OrderedDict[str, str] = OrderedDict()
        """Loaded models and their tenants, the one that was used last at the end."""
        self._answered: dict[str, asyncio.Event] = {}

    def start(self) -> None:
        """Continues the requests that were not answered before a restart, and starts to compute."""
        self._loop = asyncio.get_running_loop()
        for request in self._store.unanswered():
            if request.tenant not in self._options.tenants:
                continue
            try:
                (self.samplers.submit if request.kind == "sample" else self._compute)(request)
            except AstraFlowError as problem:  # such as a base model that is not configured any more
                self._keep(request, Outcome.failed(problem, tokens=0))
        self._forget_closed_models()
        self._executor.start()

    async def close(self) -> None:
        """Stops computing; what is not answered stays stored."""
        await asyncio.to_thread(self._executor.close)
        self._store.close()
        self.audit.close()

    def create_session(self, tenant: str, request: api.CreateSession) -> dict[str, Any]:
        """Begins a session."""
        session = f"session-{secrets.token_hex(12)}"
        for silent in self._store.silent(tenant, before=time.time() - SILENT_S):
            self.finish(tenant, silent.id)
        self._store.add(SessionRow(id=session, tenant=tenant, heard_at=time.time()))
        self.audit.write(tenant, "create_session", session)
        return {"type": "create_session", "session_id": session}

    def heartbeat(self, tenant: str, request: api.SessionRequest) -> dict[str, Any]:
        """Notes that the client of a session lives."""
        session = self._store.own(SessionRow, tenant, request.session_id)
        self._store.add(replace(session, heard_at=time.time()))
        return {"type": "session_heartbeat"}

    def finish(self, tenant: str, session: str) -> None:
        """Closes a session: its snapshots are deleted, and its models once their requests are computed. Checkpoints
        stay."""
        if self._store.find(SessionRow, session) is None:
            return  # closed before
        self._store.own(SessionRow, tenant, session)
        self.samplers.drop_snapshots(session, keep=0)
        self._store.remove_session(session)
        self.audit.write(tenant, "close_session", session)
        self._forget_closed_models()

    def _forget_closed_models(self) -> None:
        for model in self._store.closed_models():
            if model.id in self._loaded or states_folder(self._folder, model.tenant, model.id).exists():
                self._loaded.pop(model.id, None)
                self._executor.submit(model.tenant, model.id, _Call(partial(self._workshop.forget, model)))

    def create_model(self, tenant: str, request: api.CreateModel) -> dict[str, Any]:
        """Creates a model with new adapters."""
        base, config = find_base(self._bases, request.base_model), request.lora_config
        self._check_rank(tenant, config.rank)
        return self._create(
            tenant,
            request,
            base=base.name,
            rank=config.rank,
            seed=secrets.randbits(62) if config.seed is None else config.seed,
            targets=chosen_targets(base, attention=config.train_attn, mlp=config.train_mlp),
        )

    def forward_backward(self, tenant: str, body: bytes) -> dict[str, Any]:
        """Accepts training data."""
        message = parse_request(body)
        model = self._open(tenant, message.model_id)
        training_data(message, find_base(self._bases, model.base).limits)
        return self._accept(model, message.seq_id, "forward_backward", body)

    def submit(self, tenant: str, request: api.ModelRequest) -> dict[str, Any]:
        """Accepts another request to a model."""
        model = self._open(tenant, request.model_id)
        if isinstance(request, api.SaveWeights) and not (request.overwrite or self._is_known(model, request.seq_id)):
            self.catalogue.check_free(model, request.path)
        return self._accept(model, request.seq_id, request.request_kind, _dumped(request))

    def load_weights(self, tenant: str, request: api.LoadWeights) -> dict[str, Any]:
        """Restores a checkpoint, into a new model if the request names a session."""
        saved = self._store.own_checkpoint(tenant, request.path, kind="training")
        if request.model_id is not None:
            model = self._open(tenant, request.model_id)
            return self._accept(model, request.seq_id, "load_weights", _dumped(request))
        source = self._store.find(ModelRow, saved.model)
        adapters = AdapterRecord.read(checkpoint_folder(tenant_folder(self._folder, tenant), saved.path))
        if source is None or adapters is None or request.base_model not in (None, source.base):
            raise InvalidInput(
                f"cannot load {request.path!r} into a model of base_model {request.base_model!r}: it belongs to "
                f"{source.base if source else 'an unknown model'!r}; leave base_model out",
                code="tinker.other_base",
            )
        return self._create(
            tenant,
            request,
            base=source.base,
            rank=adapters.rank,
            seed=source.seed,
            targets=adapters.target_modules,
        )

    def create_sampling_session(self, tenant: str, request: api.CreateSamplingSession) -> dict[str, Any]:
        """Creates a sampler of a base or of a checkpoint."""
        self._store.own(SessionRow, tenant, request.session_id)
        sampler = self.samplers.create(tenant, request)
        return {"type": "create_sampling_session", "sampling_session_id": sampler}

    def sample(self, tenant: str, request: api.Sample) -> dict[str, Any]:
        """Accepts a prompt."""
        row = self.samplers.checked(tenant, request)
        sequences = [f"{row.id}/{number}" for number in range(request.num_samples)]
        return {"request_id": self._begin(row)["request_id"], "sample_sequence_ids": sequences}

    def cancel(self, tenant: str, request: api.RetrieveFuture) -> dict[str, Any]:
        """Ends a sampling request with what it has sampled; nothing for one that has ended."""
        self.samplers.cancel(self._store.own(RequestRow, tenant, request.request_id))
        return {}

    async def answer(self, tenant: str, request_id: str, *, wait_s: float) -> RequestRow:
        """Waits for the answer of a request; returns the request without one after `wait_s`. Raises: UnknownPolicy."""
        row = self._store.own(RequestRow, tenant, request_id)
        if row.outcome is None:
            event = self._answered.setdefault(request_id, asyncio.Event())
            try:
                async with asyncio.timeout(wait_s):
                    await event.wait()
            except TimeoutError:
                return row
            row = self._store.own(RequestRow, tenant, request_id)
        return row

    def unload(self, tenant: str, request: api.ModelRequest) -> dict[str, Any]:
        """Accepts that a model leaves the memory; it is restored when it is used again."""
        model = self._store.own(ModelRow, tenant, request.model_id)
        if self._store.waiting(owner=model.id):
            raise RateLimited(
                f"cannot unload {model.id!r}: it has requests without an answer; send the request again when they are "
                "answered",
                code="tinker.model_busy",
            )
        row = _request_row(model, model.last, "unload_model", b"", suffix=":unload")
        if not self._is_repeated(row):
            self._store.accept(row)
            answer = json.dumps({"model_id": model.id, "type": "unload_model"}).encode()
            self._store.answer(row, answer, "ok", tokens=0, state=None)
        if model.id in self._loaded:
            self._release(model.id)
        return {"request_id": row.id, "model_id": model.id}

    def _create(
        self,
        tenant: str,
        request: api.CreateModel | api.LoadWeights,
        *,
        base: str,
        rank: int,
        seed: int,
        targets: Sequence[str],
    ) -> dict[str, Any]:
        session = self._store.own(SessionRow, tenant, request.session_id or "").id
        row = ModelRow(
            id=f"{session}:train:{request.model_seq_id}",
            tenant=tenant,
            session=session,
            base=base,
            rank=rank,
            seed=seed,
            targets=",".join(targets),
            metadata=metadata_json(request.user_metadata),
            created_at=time.time(),
        )
        kind = "create_model" if isinstance(request, api.CreateModel) else "load_weights"
        if self._store.find(ModelRow, row.id) is None:
            self._check_quota(tenant)
            self._store.add(row)
            self.audit.write(tenant, kind, row.id)
        return self._accept(row, CREATED - 1, kind, _dumped(request))

    def _accept(self, model: ModelRow, seq_id: int | None, kind: str, body: bytes) -> dict[str, Any]:
        """Stores a request and hands it to the executor; a request that was accepted before is answered as before."""
        if seq_id is None or not 0 <= seq_id < 2**53:
            raise InvalidInput(
                f"cannot accept {kind}: seq_id {seq_id} is not a number from 0 up; number the requests of a model",
                code="tinker.invalid_field",
            )
        row = _request_row(model, seq_id + CREATED, kind, body)
        if not self._is_repeated(row) and row.number <= model.last:
            raise InvalidInput(
                f"cannot accept {kind}: seq_id {seq_id} was passed by {model.last - CREATED}; send the requests of a "
                "model in order",
                code="tinker.sequence_passed",
            )
        return self._begin(row)

    def _begin(self, row: RequestRow) -> dict[str, Any]:
        if not self._is_repeated(row):
            self._check_quota(row.tenant)
            self._store.accept(row)
            (self.samplers.submit if row.kind == "sample" else self._compute)(row)
        return {"request_id": row.id, "model_id": row.owner}

    def _is_repeated(self, row: RequestRow) -> bool:
        """Returns whether the request was accepted before. Raises: Conflict for another one with its number."""
        earlier = self._store.find(RequestRow, row.id)
        if earlier is not None and earlier.kind != row.kind:
            raise Conflict(
                f"cannot accept {row.kind}: request {row.id!r} was {earlier.kind}; number the requests of a model",
                code="tinker.number_in_use",
            )
        return earlier is not None

    def _compute(self, request: RequestRow) -> None:
        """Hands a request to its model."""
        model = self._store.own(ModelRow, request.tenant, request.owner)
        is_new = model.id not in self._loaded
        earlier = self._store.since_state(model.id, before=request.number) if is_new else []
        if is_new:
            self._make_room(model.tenant)
        self._loaded[model.id] = model.tenant
        self._loaded.move_to_end(model.id)
        work = ModelWork(
            request,
            lambda: self._workshop.passes(request, model, earlier),
            self._settle,
            is_state=lambda: self._workshop.states.get(model.id) == request.number,
        )
        self._executor.submit(request.tenant, model.id, work)

    def _make_room(self, tenant: str) -> None:
        """Unloads the tenant's models that were used longest ago, until one more fits; they are restored when they are
        used again."""
        own = [model for model, owner in self._loaded.items() if owner == tenant]
        idle = [model for model in own if not self._store.waiting(owner=model)]
        for model in idle[: max(0, len(own) - self._options.tenants[tenant].max_models + 1)]:
            self._release(model)

    def _release(self, model: str) -> None:
        """Lets a model without pending requests leave the memory."""
        tenant = self._loaded.pop(model)
        self._executor.submit(tenant, model, _Call(partial(self._workshop.models.pop, model, None)))

    def _settle(self, request: RequestRow, outcome: Outcome) -> None:
        """Takes a result from the executor's thread."""
        self._loop.call_soon_threadsafe(self._keep, request, outcome)

    def _keep(self, request: RequestRow, outcome: Outcome) -> None:
        state = request.number if outcome.writes_state else None
        if outcome.kind == "ok":
            self._keep_saved(request, outcome)
        else:
            self.audit.write(request.tenant, request.kind, request.id, code=outcome.answer.decode()[:300])
        self._store.answer(request, outcome.answer, outcome.kind, tokens=outcome.tokens, state=state)
        if state is not None:
            for older in states_folder(self._folder, request.tenant, request.owner).glob("*"):
                if older.name.isdigit() and int(older.name) < state:
                    shutil.rmtree(older, ignore_errors=True)
        if event := self._answered.pop(request.id, None):
            event.set()

    def _keep_saved(self, request: RequestRow, outcome: Outcome) -> None:
        """Records what a request has saved."""
        if request.kind not in SAVING:
            return
        model = self._store.own(ModelRow, request.tenant, request.owner)
        answer = json.loads(outcome.answer)
        if sampler := answer.get("sampling_session_id"):
            self.samplers.add_snapshot(model, sampler)
        else:
            self.catalogue.add(model, request, answer["path"])

    def _open(self, tenant: str, identity: str) -> ModelRow:
        """Returns a model whose session is open. Raises: UnknownPolicy."""
        model = self._store.own(ModelRow, tenant, identity)
        self._store.own(SessionRow, tenant, model.session)
        return model

    def _is_known(self, model: ModelRow, seq_id: int | None) -> bool:
        return self._store.find(RequestRow, f"{model.id}:{(seq_id or 0) + CREATED}") is not None

    def _check_quota(self, tenant: str) -> None:
        self.tenants.check_quota(tenant, tokens=self._store.tokens(tenant), waiting=self._store.waiting(tenant=tenant))

    def _check_disk(self, tenant: str) -> None:
        self.tenants.check_disk(tenant, used=folder_bytes(tenant_folder(self._folder, tenant)))

    def _check_rank(self, tenant: str, rank: int) -> None:
        limit = self._options.tenants[tenant].max_rank
        if rank > limit:
            raise InvalidInput(
                f"cannot create a model with lora_config.rank {rank}: the tenant's limit is {limit}; take a lower rank",
                code="tinker.rank_too_high",
            )


def _request_row(model: ModelRow, number: int, kind: str, body: bytes, *, suffix: str = "") -> RequestRow:
    identity = f"{model.id}:{number}{suffix}"
    return RequestRow(id=identity, owner=model.id, tenant=model.tenant, number=number, kind=kind, body=body)


class _Call:
    """A call in the executor's thread. Implements `Work`."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def advance(self) -> tuple[int, bool]:
        """Calls."""
        self._call()
        return 0, True


def _dumped(request: BaseModel) -> bytes:
    return request.model_dump_json().encode()
