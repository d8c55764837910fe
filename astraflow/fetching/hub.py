"""Repositories of the Hugging Face hub: the files that a source needs, and their download with verified content."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from astraflow.contract.errors import CorruptData, InvalidInput, StorageFull, Unavailable
from astraflow.runtime.folders.data_root import CONFIG, WHOLE, RemoteSource, SourceKind, sha256_of

_DESCRIPTIONS = ("README.md", "LICENSE*")
"""Files that are fetched with every source: the card, which says how to read it, and the licence."""

_OTHER_WEIGHTS = ("*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.gguf", "*.h5", "*.msgpack", "*.onnx*", "*.ckpt")
"""Copies of the weights in other formats, which are left out if the repository has safetensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """File of a repository at one commit."""

    path: str
    size_bytes: int
    sha256: str
    """Hash of the content; empty for a small file, which has `git_id`."""
    git_id: str
    """Git's hash of a small file's content."""

    def is_at(self, path: Path) -> bool:
        """Returns whether a file has this content."""
        if not path.is_file() or path.stat().st_size != self.size_bytes:
            return False
        if self.sha256:
            return sha256_of(path) == self.sha256
        content = path.read_bytes()
        header = f"blob {len(content)}\0".encode()
        return hashlib.sha1(header + content, usedforsecurity=False).hexdigest() == self.git_id


@dataclass(frozen=True, slots=True, kw_only=True)
class HubRepository:
    """Repository at one commit, with the files that a source needs."""

    commit: str
    license: str
    """Licence as the card states it; empty without a statement."""
    files: tuple[HubFile, ...]


def find_repository(source: RemoteSource, *, command: str) -> HubRepository:
    """Returns the commit and the files of a source. command: for error messages, fetches it where there is a network.

    Raises: Unavailable without a network; InvalidInput for a repository, revision or part that is missing or closed.
    """
    from huggingface_hub import HfApi

    repo_type = source.kind.value
    with _hub_errors(source, command):
        info: Any = HfApi().repo_info(
            source.name, repo_type=repo_type, revision=source.revision or None, files_metadata=True
        )
    card: Mapping[str, Any] = info.card_data.to_dict() if info.card_data else {}
    files = {file.rfilename: _hub_file(file) for file in info.siblings or ()}
    chosen = _chosen(source, sorted(files), card)
    return HubRepository(commit=str(info.sha), license=_license(card), files=tuple(files[name] for name in chosen))


def download(source: RemoteSource, repository: HubRepository, file: HubFile, folder: Path, *, command: str) -> None:
    """Writes a file of the repository below the folder, unless it is there; continues an interrupted download.

    Raises: errors of `find_repository`; StorageFull; CorruptData if the content differs from the hub's list.
    """
    from huggingface_hub import hf_hub_download

    path = folder / file.path
    if file.is_at(path):
        return
    path.unlink(missing_ok=True)
    with _hub_errors(source, command):
        hf_hub_download(
            source.name,
            file.path,
            repo_type=source.kind.value,
            revision=repository.commit,
            local_dir=folder,
        )
    if not file.is_at(path):
        path.unlink()
        raise CorruptData(
            f"cannot fetch the {source}: the file {file.path!r} arrived with another content than the hub lists; run "
            "the command again, and check the proxy or mirror (HF_ENDPOINT) if it fails again",
            code="fetch.wrong_hash",
        )


@contextmanager
def _hub_errors(source: RemoteSource, command: str) -> Iterator[None]:
    """Replaces the errors of the hub's client by errors with a cause and a remedy."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except HfHubHTTPError as problem:
        status = problem.response.status_code
        if status >= 500 or status == 429:
            raise _unreachable(source, command, f"the hub answers with status {status}") from problem
        raise InvalidInput(
            f"cannot fetch the {source}: the hub refused it with status {status}; check the name and the revision, "
            "accept its terms on the hub if it is gated, and set HF_TOKEN",
            code="fetch.refused",
        ) from problem
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(
                f"cannot fetch the {source}: the disk is full; free space and run the command again, which continues",
                code="fetch.no_space",
            ) from problem
        raise _unreachable(source, command, str(problem).partition("\n")[0]) from problem
    except Exception as problem:  # network errors have types of several libraries
        if type(problem).__module__.partition(".")[0] not in {"httpx", "httpx2", "httpcore", "requests", "urllib3"}:
            raise
        raise _unreachable(source, command, str(problem)) from problem


def _unreachable(source: RemoteSource, command: str, cause: str) -> Unavailable:
    return Unavailable(
        f"cannot fetch the {source}: no connection to the hub: {cause.rstrip('.')}; check network and proxy, or run "
        f"`{command}` on a machine with a network and copy the folder here; complete files are not fetched again",
        code="fetch.no_network",
    )


def _hub_file(file: Any) -> HubFile:
    return HubFile(
        path=file.rfilename,
        size_bytes=file.size or 0,
        sha256=file.lfs.sha256 if file.lfs else "",
        git_id=file.blob_id or "",
    )


def _chosen(source: RemoteSource, names: Sequence[str], card: Mapping[str, Any]) -> list[str]:
    """Returns the files that the parts of a source need. Raises: InvalidInput for a part without files."""
    visible = [name for name in names if _is_visible(name)]
    chosen = {name for name in visible if any(fnmatch(name, pattern) for pattern in _DESCRIPTIONS)}
    for part in source.parts:
        patterns = _patterns(part, card)
        matching = {name for name in visible if any(fnmatch(name, pattern) for pattern in patterns)}
        if not matching:
            raise InvalidInput(
                f"cannot fetch the {source}: it has no file of {part or 'any name'!r}; it has "
                f"{', '.join(visible[:8]) or 'none'}; correct the recipe",
                code="fetch.unknown_part",
            )
        chosen |= matching
    has_safetensors = source.kind is SourceKind.MODEL and any(name.endswith(".safetensors") for name in chosen)
    left_out = _OTHER_WEIGHTS if has_safetensors else ()
    return sorted(name for name in chosen if not any(fnmatch(name, pattern) for pattern in left_out))


def _is_visible(name: str) -> bool:
    """Returns whether a file is not hidden and below its folder: a mirror may list `/etc/passwd` or `../other`."""
    return not any(part == "" or part.startswith(".") for part in name.split("/"))


def _patterns(part: str, card: Mapping[str, Any]) -> list[str]:
    """Returns the patterns of the files of a part; all files for a configuration that the card does not describe."""
    if part == WHOLE:
        return ["*"]
    if not part.startswith(CONFIG):
        return [part]
    for config in card.get("configs") or ():
        if isinstance(config, Mapping) and f"{CONFIG}{config.get('config_name')}" == part:
            return list(_paths(config.get("data_files")))
    return ["*"]


def _paths(data_files: Any) -> Iterator[str]:
    """Yields the patterns in the `data_files` of a card: a pattern, a list, or tables with `path`."""
    if isinstance(data_files, str):
        yield data_files
    elif isinstance(data_files, Mapping):
        yield from _paths(data_files.get("path"))
    elif isinstance(data_files, Sequence):
        for entry in data_files:
            yield from _paths(entry)


def _license(card: Mapping[str, Any]) -> str:
    stated = card.get("license_name") or card.get("license") or ""
    return ", ".join(map(str, stated)) if isinstance(stated, list) else str(stated)
