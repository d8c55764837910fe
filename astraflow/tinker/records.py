"""Checkpoints, models and samplers of tenants as the API lists them, and the checks of who owns them."""

import json
import time
from pathlib import Path
from typing import Any, TypeVar

from astraflow.contract.errors import NotPermitted, RateLimited, UnknownPolicy
from astraflow.tinker import requests as api
from astraflow.tinker.config import TenantOptions
from astraflow.tinker.store import CheckpointRow, ModelRow, RequestRow, SamplerRow, Store

Owned = TypeVar("Owned", ModelRow, SamplerRow, RequestRow, CheckpointRow)


def own(row: Owned | None, tenant: str, noun: str, name: str) -> Owned:
    """Returns a row if it is the tenant's. Raises: UnknownPolicy, as for a row that does not exist."""
    if row is None or row.tenant != tenant:
        raise unknown(noun, name)
    return row


def own_checkpoint(store: Store, tenant: str, path: str, kind: str = "") -> CheckpointRow:
    """Returns a checkpoint by its path. kind: that it must have; empty: any. Raises: UnknownPolicy."""
    row = store.checkpoint(path) if api.CHECKPOINT.fullmatch(path) else None
    noun = f"{kind} checkpoint".strip()
    if row is not None and kind not in ("", row.kind):
        raise unknown(noun, path)
    return own(row, tenant, noun, path)


def unknown(noun: str, name: str) -> UnknownPolicy:
    """Returns the error of a name that a tenant does not have."""
    return UnknownPolicy(
        f"cannot find the {noun} {name[:300]!r}: the tenant has none; check the name and the key", code="tinker.unknown"
    )


def check_quota(store: Store, tenant: str, options: TenantOptions) -> None:
    """Raises: NotPermitted when the tenant's tokens are used up; RateLimited when too many requests wait."""
    if options.max_tokens is not None and store.tokens(tenant) >= options.max_tokens:
        raise NotPermitted(
            f"cannot accept the request: tenant {tenant!r} has used its max_tokens, {options.max_tokens}; ask the "
            "operator of the server for more",
            code="tinker.quota_exhausted",
        )
    if store.waiting(tenant) >= options.max_waiting:
        raise RateLimited(
            f"cannot accept the request: {options.max_waiting} requests of tenant {tenant!r} wait; send it again when "
            "some are answered",
            code="tinker.too_many_requests",
        )


def training_run(model: ModelRow, saved: list[CheckpointRow]) -> dict[str, Any]:
    """Returns a model as the API lists it. saved: its checkpoints, the newest first."""
    newest = {row.kind: checkpoint_record(row) for row in reversed(saved)}
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


def checkpoint_record(row: CheckpointRow) -> dict[str, Any]:
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


def checkpoint_folder(folder: Path, path: str) -> Path:
    """Returns the folder of a checkpoint, whose path was checked, below that of the server."""
    model, kind, name = path.removeprefix("tinker://").split("/")
    return folder / "models" / model / kind / name


def sampler_folder(folder: Path, sampler: str) -> Path:
    """Returns the folder with the weights of a sampling session."""
    return folder / "samplers" / sampler


def _texts(metadata: str) -> dict[str, str]:
    return {name: str(value) for name, value in json.loads(metadata).items()}


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
