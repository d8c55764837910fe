"""Sampling sessions of tenants, and the runs that compute their requests."""

import asyncio
import shutil
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from astraflow.tinker import requests as api
from astraflow.tinker.base_models import SharedBase, find_base
from astraflow.tinker.executor import Executor
from astraflow.tinker.sampling import SamplerRun, sample_job
from astraflow.tinker.store import (
    ModelRow,
    RequestRow,
    SamplerRow,
    Store,
    checkpoint_folder,
    sampler_folder,
    tenant_folder,
)
from astraflow.tinker.tenant_models import sampling_adapters
from astraflow.tinker.work import Outcome, Settle

KEPT_SNAPSHOTS = 16
"""Snapshots of a session without a name; older ones are deleted."""
MAX_IDLE = 32
"""Samplers without requests whose adapters stay in memory."""


class Samplers:
    """Samplers in memory. For the event loop's thread."""

    def __init__(
        self, folder: Path, bases: Mapping[str, SharedBase], store: Store, executor: Executor, settle: Settle
    ) -> None:
        """settle: takes results, in the event loop's thread."""
        self._folder = folder
        self._bases = bases
        self._store = store
        self._executor = executor
        self._settle = settle
        self._runs: OrderedDict[str, SamplerRun] = OrderedDict()

    def create(self, tenant: str, request: api.CreateSamplingSession) -> str:
        """Creates a sampler of a base or of a checkpoint, in a session of the tenant; returns its id."""
        if request.model_path is not None:
            saved = self._store.own_checkpoint(tenant, request.model_path, kind="sampler")
            model = self._store.own(ModelRow, tenant, saved.model)
            base, path = model.base, str(checkpoint_folder(Path(), saved.path))
        else:
            base, path = find_base(self._bases, request.base_model or "").name, ""
        sampler = f"{request.session_id}:sample:{request.sampling_session_seq_id}"
        self._add(SamplerRow(id=sampler, tenant=tenant, session=request.session_id, base=base, path=path))
        return sampler

    def add_snapshot(self, model: ModelRow, sampler: str) -> None:
        """Records the weights that a model has saved for a sampler, and deletes older ones of its session."""
        path = str(sampler_folder(Path(), sampler))
        self._add(SamplerRow(id=sampler, tenant=model.tenant, session=model.session, base=model.base, path=path))
        self.drop_snapshots(model.session, keep=KEPT_SNAPSHOTS)

    def drop_snapshots(self, session: str, *, keep: int) -> None:
        """Deletes the oldest snapshots of a session that have no request in progress."""
        for row in self._store.snapshots(session)[keep:]:
            if self._store.waiting(owner=row.id):
                continue
            self._runs.pop(row.id, None)
            self._store.remove_sampler(row.id)
            shutil.rmtree(tenant_folder(self._folder, row.tenant) / row.path, ignore_errors=True)

    def info(self, tenant: str, sampler: str) -> dict[str, Any]:
        """Returns the facts of a sampling session."""
        row = self._store.own(SamplerRow, tenant, sampler)
        return {"sampler_id": row.id, "base_model": row.base, "model_path": None}

    def checked(self, tenant: str, request: api.Sample) -> RequestRow:
        """Returns a request as it is stored. Raises: InvalidInput naming the field."""
        sampler = self._store.own(SamplerRow, tenant, request.sampling_session_id)
        row = RequestRow(
            id=f"{sampler.id}:{request.seq_id}",
            owner=sampler.id,
            tenant=tenant,
            number=request.seq_id,
            kind="sample",
            body=request.model_dump_json().encode(),
        )
        sample_job(row.id, request, find_base(self._bases, sampler.base), lambda _outcome: None)
        return row

    def submit(self, row: RequestRow) -> None:
        """Hands a stored request to its sampler."""
        sampler, loop = self._store.own(SamplerRow, row.tenant, row.owner), asyncio.get_running_loop()
        run = self._run(sampler)

        def settle(outcome: Outcome) -> None:
            loop.call_soon_threadsafe(self._settle, row, outcome)

        request = api.Sample.model_validate_json(row.body)
        if run.add(sample_job(row.id, request, find_base(self._bases, sampler.base), settle)):
            self._executor.submit(row.tenant, sampler.id, run)

    def cancel(self, request: RequestRow) -> None:
        """Ends a request with what it has sampled; nothing for one that has ended."""
        if run := self._runs.get(request.owner):
            run.cancel(request.id)

    def _add(self, row: SamplerRow) -> None:
        """Records a sampler; requests in progress on earlier weights of the same name end with those."""
        self._store.add(row)
        self._runs.pop(row.id, None)

    def _run(self, sampler: SamplerRow) -> SamplerRun:
        if sampler.id not in self._runs:
            idle = [name for name in self._runs if not self._store.waiting(owner=name)]
            for name in idle[: max(0, len(idle) - MAX_IDLE + 1)]:
                del self._runs[name]
            base = find_base(self._bases, sampler.base)
            folder = tenant_folder(self._folder, sampler.tenant) / sampler.path
            read: Callable[[], Any] = (lambda: sampling_adapters(base, folder)) if sampler.path else dict
            self._runs[sampler.id] = SamplerRun(base, read)
        self._runs.move_to_end(sampler.id)
        return self._runs[sampler.id]
