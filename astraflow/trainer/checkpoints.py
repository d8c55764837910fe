"""Checkpoints: written atomically, verified by hashes, rejected for another policy, model or backend."""

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from blake3 import blake3

from astraflow.contract.batches import StepReport
from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.ids import BatchId, PolicyId, Version
from astraflow.contract.values import Json
from astraflow.runtime.locks import exclusive_lock
from astraflow.runtime.logs import get_logger
from astraflow.trainer.retention import Retention

log = get_logger()

FORMAT = 2
"""Version of the manifest's format; other versions are not read."""

SCORES_DELAY_S = 5.0
"""Age up to which a checkpoint may stay for a score, since its evaluation becomes known with a delay. Seconds."""

_FINISHED = re.compile(r"step-(\d{8,})")
_SET_ASIDE = re.compile(r"step-(\d{8,})\.damaged")
_TEMPORARY_FOLDER = ".writing"
FRESH_OPTIMIZER = "fresh_optimizer"
"""File in the state of a checkpoint from which training begins with a new state of the optimizer."""
_MANIFEST = "manifest.json"
_STATE = "state"
_OTHER_FORMAT = "checkpoint.unknown_format"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointIdentity:
    """Policy, model and backend that a checkpoint belongs to. A trainer rejects checkpoints with another identity."""

    policy: PolicyId
    model: Mapping[str, Json]
    backend: str
    """Kind of the backend that wrote the files; its options may change between restarts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProgress:
    """Progress of a policy's training."""

    run: str
    """Run whose batches were trained."""
    step: int
    """Number of trained batches, which is also the version of the weights."""
    report: StepReport | None
    """Report of the last batch, acknowledged again after a crash; None before the first batch."""
    damaged: int = 0
    """Step of the newest checkpoint that could not be read and is set aside; 0 without one. Steps up to it may be
    acknowledged, and versions published, although what they changed is lost."""

    @property
    def version(self) -> Version:
        """Version of the weights in this checkpoint."""
        return Version(self.step)

    def at_least(self, acknowledged_steps: int) -> "TrainingProgress":
        """Returns the progress from which training goes on: acknowledged steps of a damaged checkpoint count as made,
        since their batches are not served again and their versions are published."""
        return self if acknowledged_steps <= self.step else replace(self, step=acknowledged_steps, report=None)


class Checkpoints:
    """Checkpoints of one trainer in their own folder, which one process locks at a time.

    `folder/step-N/` holds `manifest.json` (identity, progress, published element types, size and BLAKE3 of every file,
    its own digest) and `state/`, written by the backend's captured state. A checkpoint is written to a temporary
    folder, flushed to disk file by file, and renamed once; a crash leaves at most a `.writing` folder, which the next
    start removes. One that is damaged is renamed to `step-N.damaged` when an older one is intact.
    """

    def __init__(self, folder: Path, identity: CheckpointIdentity, *, keep: Retention) -> None:
        """keep: rule of the checkpoints that stay when another one is written."""
        self.folder = folder
        self._identity = identity
        self._keep = keep
        self._scores: Mapping[int, float] = {}
        self._evaluated: Collection[int] = ()

    def set_scores(self, scores: Mapping[int, float], *, evaluated: Collection[int]) -> None:
        """Sets the scores of versions, by step, for the rule that keeps the best. evaluated: steps whose evaluation
        runs."""
        self._scores, self._evaluated = dict(scores), frozenset(evaluated)

    @contextmanager
    def exclusive_lock(self) -> Iterator[None]:
        """Locks the folder against other trainers. The operating system releases the lock when the process ends.

        Raises: InvalidInput when another process holds the lock or the folder cannot be written.
        """
        refusal = InvalidInput(
            f"cannot use checkpoint folder {str(self.folder)!r}: another trainer uses it; stop that trainer, or give "
            "this trainer its own directory",
            code="checkpoint.in_use",
        )
        with ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(exclusive_lock(self.folder / ".lock", refusal=refusal))
            except OSError as problem:
                raise InvalidInput(
                    f"cannot use checkpoint folder {str(self.folder)!r}: {problem.strerror}; make it writable or give "
                    "another directory",
                    code="checkpoint.folder_unusable",
                ) from problem
            shutil.rmtree(self.folder / _TEMPORARY_FOLDER, ignore_errors=True)
            yield

    def save(
        self, progress: TrainingProgress, write: Callable[[Path], None], *, published: Mapping[str, str] | None = None
    ) -> Path:
        """Persists `progress` with the files that `write` puts into an empty folder, then removes old checkpoints.

        published: element type of each tensor of the version.
        Raises: OSError (such as a full disk); the existing checkpoints are then unchanged.
        """
        temporary, target = self.folder / _TEMPORARY_FOLDER, self.folder / f"step-{progress.step:08d}"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            (temporary / _STATE).mkdir(parents=True)
            write(temporary / _STATE)
            with ThreadPoolExecutor(max_workers=1) as disk:  # hashes what is in memory while the disk writes it
                flushing = disk.submit(_flush, temporary / _STATE)
                _write_manifest(temporary, self._identity, progress, published or {})
                flushing.result()
            _sync(temporary / _MANIFEST)
            _sync(temporary)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        if target.exists():  # one in another format that was skipped when training resumed from an older one
            shutil.rmtree(target)
        temporary.rename(target)
        _sync(self.folder)
        self._remove_old()
        return target

    def load(self, read: Callable[[Path], None]) -> TrainingProgress | None:
        """Passes the newest intact checkpoint to `read`; returns its progress, None when there is no checkpoint. Newer
        damaged ones are set aside.

        Raises: InvalidInput for another policy, model or backend, and when no checkpoint is intact.
        """
        skipped: dict[Path, CorruptData] = {}
        for folder in finished_checkpoints(self.folder):
            try:
                progress = _read_progress(read_manifest(folder), self._identity, folder)
                read(folder / _STATE)
            except CorruptData as problem:
                log.warning("checkpoint_skipped", folder=str(folder), problem=str(problem))
                skipped[folder] = problem
                continue
            damaged = [folder for folder, problem in skipped.items() if problem.code != _OTHER_FORMAT]
            return replace(progress, damaged=self._set_aside(damaged, step=progress.step))
        unusable = [folder.name for folder in (*skipped, *_by_step(self.folder, _SET_ASIDE).values())]
        if unusable:
            raise InvalidInput(
                f"cannot resume from {str(self.folder)!r}: no checkpoint is intact ({', '.join(unusable)}); restore "
                "one from a backup, or move the folder away and start a new run",
                code="checkpoint.none_intact",
            )
        return None

    def _set_aside(self, damaged: list[Path], *, step: int) -> int:
        """Renames damaged checkpoints, and removes all but the newest of those that training has passed; returns the
        step of the newest, 0 without any. step: of the intact checkpoint."""
        for folder in damaged:
            target = folder.with_name(f"{folder.name}.damaged")
            _remove(target)
            folder.rename(target)
        by_step = _by_step(self.folder, _SET_ASIDE)
        for number, folder in list(by_step.items())[1:]:
            if number <= step:
                _remove(folder)
        return max(by_step, default=0)

    def _surplus_folders(self) -> list[Path]:
        """Folders that the rule does not keep, newest first."""
        folders = _by_step(self.folder, _FINISHED)
        sizes = {step: 0 if self._keep.max_bytes is None else _size_of(folder) for step, folder in folders.items()}
        return [
            folders[step] for step in self._keep.surplus(sizes, scores=self._scores, pending=self._pending(folders))
        ]

    def _pending(self, folders: Mapping[int, Path]) -> set[int]:
        """Returns the steps that are evaluated now, or whose evaluation may not be known yet."""
        if self._keep.best is None:
            return set()
        now = time.time()
        new = {step for step, folder in folders.items() if now - folder.stat().st_mtime < SCORES_DELAY_S}
        return {*self._evaluated, *new}

    def _remove_old(self) -> None:
        for folder in self._surplus_folders():
            # The folder is renamed first, because partially removed checkpoints must not look like damaged checkpoints.
            try:
                shutil.rmtree(folder.rename(self.folder / _TEMPORARY_FOLDER))
            except OSError as problem:  # the new checkpoint is durable regardless
                log.warning("checkpoint_not_removed", folder=str(folder), problem=str(problem))


def finished_checkpoints(folder: Path) -> list[Path]:
    """Returns the folders of complete checkpoints, newest first."""
    return list(_by_step(folder, _FINISHED).values())


def step_of(checkpoint: Path) -> int:
    """Returns the step of a complete checkpoint."""
    return int(checkpoint.name.removeprefix("step-"))


def fork_checkpoint(source: Path, folder: Path, *, run: str, keeps_optimizer: bool) -> None:
    """Writes a checkpoint as the beginning of another run, whose trainer has the checkpoints in `folder`.

    The files are linked where the file system can, since files of checkpoints never change: removing one checkpoint
    leaves the other as it is. keeps_optimizer: False for new moments and update counts.
    Raises: CorruptData when the checkpoint is damaged; OSError.
    """
    manifest = read_manifest(source)
    temporary, target = folder / _TEMPORARY_FOLDER, folder / f"step-{0:08d}"
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(source / _STATE, temporary / _STATE, copy_function=_link_or_copy)
    if not keeps_optimizer:
        (temporary / _STATE / FRESH_OPTIMIZER).touch()
    identity = CheckpointIdentity(**manifest["identity"])
    progress = TrainingProgress(run=run, step=0, report=None)
    _write_manifest(temporary, identity, progress, manifest["published"])
    _flush(temporary)
    temporary.rename(target)
    _sync(folder)


def same_model(stored: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    """Returns whether the model in the identity of a checkpoint is this one."""
    return dict(stored) == _as_json(model)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _by_step(folder: Path, name: re.Pattern[str]) -> dict[int, Path]:
    """Returns the checkpoints of such a name, newest first."""
    paths = {int(match[1]): path for path in folder.iterdir() if (match := name.fullmatch(path.name))}
    return dict(sorted(paths.items(), reverse=True))


def _remove(path: Path) -> None:
    """Removes a checkpoint, which damage may have made a file."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _write_manifest(
    folder: Path, identity: CheckpointIdentity, progress: TrainingProgress, published: Mapping[str, str]
) -> None:
    content = {
        "format": FORMAT,
        "identity": asdict(identity),
        "run": progress.run,
        "step": progress.step,
        "report": asdict(progress.report) if progress.report else None,
        "published": dict(published),
        "files": _files(folder / _STATE),
    }
    (folder / _MANIFEST).write_text(json.dumps({"digest": _digest(content), **content}, indent=1))


def _files(state: Path) -> dict[str, list[Json]]:
    """Returns relative name -> size in bytes and BLAKE3 of every file below `state`."""
    paths = sorted(path for path in state.rglob("*") if path.is_file())
    return {str(path.relative_to(state)): [path.stat().st_size, _hash(path)] for path in paths}


def _hash(path: Path) -> str:
    """Returns the BLAKE3 of a file, computed by several threads where the file is large."""
    return blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()


def _digest(content: Mapping[str, Any]) -> str:
    return blake3(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _flush(folder: Path) -> None:
    """Flushes everything below `folder`, and the folders themselves, to disk."""
    for path in folder.rglob("*"):
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Returns the manifest of a checkpoint after verifying all its files. Raises: CorruptData."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        raise CorruptData("its manifest is missing or unreadable", code="checkpoint.damaged") from None
    if not isinstance(manifest, dict) or manifest.pop("digest", None) != _digest(manifest):
        raise CorruptData("its manifest does not match its own digest", code="checkpoint.damaged")
    if manifest["format"] != FORMAT:
        raise CorruptData(f"its format is {manifest['format']!r}, this release reads {FORMAT}", code=_OTHER_FORMAT)
    try:
        files = _files(folder / _STATE)
    except OSError as problem:
        raise CorruptData(f"its files cannot be read: {problem}", code="checkpoint.damaged") from problem
    if files != manifest["files"]:
        raise CorruptData("its files do not match its manifest", code="checkpoint.damaged")
    return manifest


def _read_progress(manifest: Mapping[str, Any], identity: CheckpointIdentity, folder: Path) -> TrainingProgress:
    for part, expected in _as_json(asdict(identity)).items():
        stored = manifest["identity"].get(part)
        if stored != expected:
            raise InvalidInput(
                f"cannot resume from checkpoint {str(folder)!r}: its {part} is {stored!r}, this trainer's is "
                f"{expected!r}; give the trainer another directory, or the configuration the checkpoint was made with",
                code="checkpoint.identity_mismatch",
            )
    report = manifest["report"]
    return TrainingProgress(run=manifest["run"], step=manifest["step"], report=_report(report) if report else None)


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values after a JSON round trip: tuples become lists."""
    decoded: dict[str, Any] = json.loads(json.dumps(values))
    return decoded


def _report(values: Mapping[str, Any]) -> StepReport:
    named = {"batch": BatchId(values["batch"]), "policy": PolicyId(values["policy"])}
    return StepReport(**{**values, **named, "version": Version(values["version"])})
