"""Models and checkpoints of tenants, as the API lists them."""

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.tinker import requests as api
from astraflow.tinker.base_models import SharedBase, find_base
from astraflow.tinker.config import TenantOptions
from astraflow.tinker.store import (
    CheckpointRow,
    ModelRow,
    RequestRow,
    Store,
    checkpoint_folder,
    folder_bytes,
    metadata_json,
    tenant_folder,
)
from astraflow.tinker.tenants import AuditLog
from astraflow.wire.pb import tinker_pb2 as pb


class Catalogue:
    """Models and checkpoints of tenants. For the event loop's thread."""

    def __init__(
        self,
        folder: Path,
        bases: Mapping[str, SharedBase],
        store: Store,
        audit: AuditLog,
        tenants: Mapping[str, TenantOptions],
    ) -> None:
        self._folder = folder
        self._tenants = tenants
        self._bases = bases
        self._store = store
        self._audit = audit

    @property
    def capabilities(self) -> dict[str, Any]:
        """Returns the base models."""
        models = [
            {"model_name": name, "max_context_length": base.limits.context, "trainable": True, "sampleable": True}
            for name, base in self._bases.items()
        ]
        return {"supported_models": models}

    def overview(self, tenant: str) -> dict[str, Any]:
        """Returns what a tenant uses, its limits, and its models with open sessions."""
        closed = {model.id for model in self._store.closed_models()}
        models = [self._model_line(model) for model in self._store.models(tenant) if model.id not in closed]
        return {
            "name": tenant,
            **self._tenants[tenant].model_dump(),
            "tokens": self._store.tokens(tenant),
            "waiting": self._store.waiting(tenant=tenant),
            "disk_bytes": folder_bytes(tenant_folder(self._folder, tenant)),
            "checkpoints": len(self._store.checkpoints(tenant)),
            "models": models,
        }

    def _model_line(self, model: ModelRow) -> dict[str, Any]:
        passes = self._store.last_pass(model.id)
        output = None if passes is None else pb.ForwardBackwardOutput.FromString(passes.answer or b"")
        return {
            "id": model.id,
            "base": model.base,
            "rank": model.rank,
            "steps": model.steps,
            "waiting": self._store.waiting(owner=model.id),
            "loss": None if output is None else output.metrics["loss:sum"],
        }

    def model_info(self, tenant: str, request: api.ModelRequest) -> dict[str, Any]:
        """Returns the facts of a model."""
        model = self._store.own(ModelRow, tenant, request.model_id)
        base = find_base(self._bases, model.base)
        data = {"arch": base.model.config.model_type, "model_name": base.name, "tokenizer_id": base.tokenizer_id}
        return {
            "type": "get_info",
            "model_data": data,
            "model_id": model.id,
            "model_name": base.name,
            "is_lora": True,
            "lora_rank": model.rank,
        }

    def training_runs(self, tenant: str) -> list[dict[str, Any]]:
        """Returns the models of a tenant, the newest first."""
        return [_training_run(row, self._store.checkpoints(tenant, row.id)) for row in self._store.models(tenant)]

    def training_run(self, tenant: str, model_id: str) -> dict[str, Any]:
        """Returns a model of a tenant."""
        model = self._store.own(ModelRow, tenant, model_id)
        return _training_run(model, self._store.checkpoints(tenant, model_id))

    def checkpoints(self, tenant: str, model_id: str = "") -> list[dict[str, Any]]:
        """Returns the checkpoints of a tenant, or of one of its models."""
        if model_id:
            self._store.own(ModelRow, tenant, model_id)
        return [_checkpoint(row) for row in self._store.checkpoints(tenant, model_id)]

    def delete_checkpoint(self, tenant: str, path: str) -> None:
        """Deletes a checkpoint."""
        self._remove(self._store.own(CheckpointRow, tenant, path))

    def weights_info(self, tenant: str, request: api.WeightsInfo) -> dict[str, Any]:
        """Returns the facts that a client needs to load a checkpoint."""
        checkpoint = self._store.own(CheckpointRow, tenant, request.tinker_path)
        model = self._store.own(ModelRow, tenant, checkpoint.model)
        kinds = {find_base(self._bases, model.base).target_modules[name] for name in model.targets.split(",")}
        return {
            "base_model": model.base,
            "is_lora": True,
            "lora_rank": model.rank,
            "train_unembed": False,
            "train_attn": True in kinds,
            "train_mlp": False in kinds,
        }

    def check_free(self, model: ModelRow, name: str) -> None:
        """Checks that a model has no checkpoint of a name. Raises: InvalidInput."""
        path = f"tinker://{model.id}/weights/{name}"
        if self._store.find(CheckpointRow, path) is not None:
            raise InvalidInput(
                f"cannot save {path!r}: it exists; take another name, or set overwrite", code="tinker.checkpoint_exists"
            )

    def add(self, model: ModelRow, request: RequestRow, path: str) -> None:
        """Records a checkpoint that was written, and deletes those whose time is over."""
        saved, now = json.loads(request.body), time.time()
        lifetime_s, folder = saved["ttl_seconds"], tenant_folder(self._folder, model.tenant)
        row = CheckpointRow(
            path=path,
            tenant=model.tenant,
            model=model.id,
            kind="training" if request.kind == "save_weights" else "sampler",
            size_bytes=folder_bytes(checkpoint_folder(folder, path)),
            metadata=metadata_json(saved["user_metadata"]),
            created_at=now,
            expires_at=None if lifetime_s is None else now + lifetime_s,
        )
        self._store.add(row)
        self._audit.write(model.tenant, request.kind, path)
        for expired in self._store.expired():
            self._remove(expired)

    def _remove(self, row: CheckpointRow) -> None:
        self._store.remove_checkpoint(row.path)
        folder = tenant_folder(self._folder, row.tenant)
        shutil.rmtree(checkpoint_folder(folder, row.path), ignore_errors=True)
        self._audit.write(row.tenant, "delete_checkpoint", row.path)


def _training_run(model: ModelRow, saved: list[CheckpointRow]) -> dict[str, Any]:
    """Returns a model as the API lists it. saved: its checkpoints, the newest first."""
    newest = {row.kind: _checkpoint(row) for row in reversed(saved)}
    return {
        "training_run_id": model.id,
        "base_model": model.base,
        "model_owner": model.tenant,
        "is_lora": True,
        "lora_rank": model.rank,
        "last_request_time": _utc(model.created_at),
        "last_checkpoint": newest.get("training"),
        "last_sampler_checkpoint": newest.get("sampler"),
        "user_metadata": _texts(model.metadata),
    }


def _checkpoint(row: CheckpointRow) -> dict[str, Any]:
    """Returns a checkpoint as the API lists it."""
    return {
        "checkpoint_id": row.path.removeprefix("tinker://").partition("/")[2],
        "checkpoint_type": row.kind,
        "time": _utc(row.created_at),
        "tinker_path": row.path,
        "size_bytes": row.size_bytes,
        "user_metadata": _texts(row.metadata),
        "expires_at": None if row.expires_at is None else _utc(row.expires_at),
    }


def _texts(metadata: str) -> dict[str, str]:
    return {name: str(value) for name, value in json.loads(metadata).items()}


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
