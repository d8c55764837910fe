"""Checkpoints: whole or not there, proven by hashes, refused when they belong to something else."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3

from astraflow.contract.batches import StepReport
from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.ids import BatchId, PolicyId, Version
from astraflow.contract.values import Json
from astraflow.runtime.locks import held
from astraflow.runtime.logs import get_logger

log = get_logger()

FORMAT = 1
"""Of the manifest; another one is not read."""

_FINISHED = re.compile(r"step-(\d{8,})")
_WRITING = ".writing"
_MANIFEST = "manifest.json"
_STATE = "state"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a checkpoint is of. One of something else is refused, because its files would mean something else."""

    policy: PolicyId
    model: Mapping[str, Json]
    backend: str
    """Kind of the backend, whose files they are; its options may change between runs of the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a policy's training is."""

    run: str
    """The run whose batches made it."""
    step: int
    """Batches trained, which is the version of the weights."""
    report: StepReport | None
    """Of the last batch, to be acknowledged again after a crash; None before the first."""

    @property
    def version(self) -> Version:
        """The version of the weights in this checkpoint."""
        return Version(self.step)


class Checkpoints:
    """The checkpoints of one trainer in a folder of their own, which one process holds at a time.

    `folder/step-N/` holds `manifest.json` (identity, progress, size and BLAKE3 of every file, digest of itself) and
    `state/`, which is the backend's. A checkpoint is written beside the others, flushed to the disk file by file, and
    appears by one rename; a crash leaves at most a `.writing` folder, removed at the next start.
    """

    def __init__(self, folder: Path, identity: Identity, *, keep: int) -> None:
        self.folder = folder
        self._identity = identity
        self._keep = keep

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep every other trainer out. The lock ends with the process, however that ends.

        Raises: InvalidInput when another process holds the folder or it cannot be written.
        """
        refusal = f"another trainer is working in {self.folder}: stop it, or give this one a directory of its own"
        with ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(held(self.folder / ".lock", refusal=refusal))
            except OSError as problem:
                raise InvalidInput(f"checkpoint folder {self.folder} cannot be used: {problem.strerror}") from problem
            shutil.rmtree(self.folder / _WRITING, ignore_errors=True)
            yield

    def save(self, progress: Progress, write: Callable[[Path], None]) -> Path:
        """Make `progress` durable with the files that `write` puts into an empty folder; older ones are thinned out.

        Raises: OSError (a full disk among others): then the checkpoints are as before.
        """
        draft, target = self.folder / _WRITING, self.folder / f"step-{progress.step:08d}"
        shutil.rmtree(draft, ignore_errors=True)
        try:
            (draft / _STATE).mkdir(parents=True)
            write(draft / _STATE)
            _write_manifest(draft, self._identity, progress)
            _flush(draft)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        if target.exists():  # a damaged one, skipped when training went on from the one before
            shutil.rmtree(target)
        draft.rename(target)
        _sync(self.folder)
        self._thin_out()
        return target

    def load(self, read: Callable[[Path], None]) -> Progress | None:
        """Hand the newest checkpoint that is whole to `read`; None when there has never been one.

        Raises: InvalidInput for one of another policy, model or backend; CorruptData when none is whole.
        """
        damaged: list[str] = []
        for folder in self._finished():
            try:
                progress = _progress(_checked(folder), self._identity, folder)
                read(folder / _STATE)
            except CorruptData as problem:
                log.warning("checkpoint_skipped", folder=str(folder), problem=str(problem))
                damaged.append(folder.name)
                continue
            return progress
        if damaged:
            raise CorruptData(
                f"no checkpoint in {self.folder} is whole ({', '.join(damaged)}): restore one from a backup, or move "
                "the folder away and start a new run"
            )
        return None

    def _finished(self) -> list[Path]:
        """Newest first."""
        found = [(int(match[1]), path) for path in self.folder.iterdir() if (match := _FINISHED.fullmatch(path.name))]
        return [path for _, path in sorted(found, reverse=True)]

    def _thin_out(self) -> None:
        for folder in self._finished()[self._keep :]:
            # Renamed first: half-removed checkpoints must not look like damaged ones.
            try:
                shutil.rmtree(folder.rename(self.folder / _WRITING))
            except OSError as problem:  # the checkpoint just written is durable all the same
                log.warning("checkpoint_not_removed", folder=str(folder), problem=str(problem))


def _write_manifest(draft: Path, identity: Identity, progress: Progress) -> None:
    content = {
        "format": FORMAT,
        "identity": asdict(identity),
        "run": progress.run,
        "step": progress.step,
        "report": asdict(progress.report) if progress.report else None,
        "files": _files(draft / _STATE),
    }
    (draft / _MANIFEST).write_text(json.dumps({"digest": _digest(content), **content}, indent=1))


def _files(state: Path) -> dict[str, list[Json]]:
    """Relative name -> size in bytes and BLAKE3 of every file below `state`."""
    found = sorted(path for path in state.rglob("*") if path.is_file())
    return {
        str(path.relative_to(state)): [path.stat().st_size, blake3().update_mmap(path).hexdigest()] for path in found
    }


def _digest(content: Mapping[str, Any]) -> str:
    return blake3(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _flush(folder: Path) -> None:
    """Everything below `folder`, and the folders themselves, to the disk."""
    for path in folder.rglob("*"):
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checked(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint whose every file is as it was written. Raises: CorruptData."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_bytes())
    except (OSError, ValueError):
        raise CorruptData("it has no readable manifest") from None
    if not isinstance(manifest, dict) or manifest.pop("digest", None) != _digest(manifest):
        raise CorruptData("its manifest does not match its own digest")
    if manifest["format"] != FORMAT:
        raise CorruptData(f"its format is {manifest['format']}, this release reads {FORMAT}")
    if _files(folder / _STATE) != manifest["files"]:
        raise CorruptData("its files are not those that the manifest lists")
    return manifest


def _progress(manifest: Mapping[str, Any], identity: Identity, folder: Path) -> Progress:
    for part, expected in _as_json(asdict(identity)).items():
        found = manifest["identity"].get(part)
        if found != expected:
            raise InvalidInput(
                f"checkpoint {folder} is of {part} {found!r}, this trainer is told {expected!r}: give the trainer "
                "another directory, or the configuration the checkpoint was made with"
            )
    report = manifest["report"]
    return Progress(run=manifest["run"], step=manifest["step"], report=_report(report) if report else None)


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """As they read after a round trip: tuples become lists."""
    read: dict[str, Any] = json.loads(json.dumps(values))
    return read


def _report(values: Mapping[str, Any]) -> StepReport:
    named = {"batch": BatchId(values["batch"]), "policy": PolicyId(values["policy"])}
    return StepReport(**{**values, **named, "version": Version(values["version"])})
