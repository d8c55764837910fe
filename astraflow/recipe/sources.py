"""Downloads that a recipe names, their place in a data root, and the identity of local files."""

import glob
import hashlib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from astraflow.datasets import datasets
from astraflow.models import models
from astraflow.runtime.config.toml import Values, merge_tables
from astraflow.runtime.folders.data_root import WHOLE, DataRoot, RemoteOptions, RemoteSource
from astraflow.runtime.plugins import Registry, plugin_function

PluginSpec = tuple[tuple[str, ...], Registry[Any], Mapping[str, Any]]
"""Plugin of a recipe: its path, its registry, and its spec."""


def remote_sources(specs: Iterable[PluginSpec]) -> list[RemoteSource]:
    """Returns the downloads of models and data sets, one for each repository and revision. Raises: InvalidInput for
    invalid options."""
    sources: dict[str, RemoteSource] = {}
    for _, _, source in _downloads(specs):
        earlier = sources.get(source.folder)
        parts = sorted({*earlier.parts, *source.parts}) if earlier else source.parts
        sources[source.folder] = replace(source, parts=(WHOLE,) if WHOLE in parts else tuple(parts))
    return list(sources.values())


def local_values(specs: Iterable[PluginSpec], data_root: str, *, recipe: str) -> Values:
    """Returns the recipe's settings that replace each download by its folder in the data root.

    recipe: argument of the commands that read it, for errors.
    Raises: InvalidInput for a download that the folder lacks.
    """
    root = DataRoot(Path(data_root))
    values: Values = {}
    for path, option, source in _downloads(specs):
        setting: Any = str(root.folder_of(source, recipe=recipe))
        for key in reversed((*path, option)):
            setting = {key: setting}
        values = merge_tables(values, setting)
    return values


def warm_start_values(specs: Iterable[PluginSpec]) -> Values:
    """Returns the recipe's settings that identify the data files and the user's experts of warm starts, whose models
    are cached.

    Those of a run's snapshot stay, so that its model is found again when the files have changed since.
    """
    values: Values = {}
    for path, registry, spec in specs:
        warm_start = spec.get("warm_start") if registry is models else None
        if not isinstance(warm_start, Mapping) or warm_start.get("data"):
            continue
        files = sorted(file for location in _paths(warm_start.get("dataset")) for file in _files_at(location))
        files += _expert_files(warm_start)
        if files:
            setting: Any = _content_hash(files)
            for key in reversed((*path, "warm_start", "data")):
                setting = {key: setting}
            values = merge_tables(values, setting)
    return values


def _expert_files(warm_start: Mapping[str, Any]) -> list[Path]:
    """Returns the files of the user's experts, in order. Raises: InvalidInput for an unknown one."""
    episodes = warm_start.get("episodes")
    experts = episodes.get("experts") if isinstance(episodes, Mapping) else None
    entries = (
        sorted({str(name) for name in experts.values() if ":" in str(name)}) if isinstance(experts, Mapping) else []
    )
    return [Path(inspect.getfile(plugin_function(entry))) for entry in entries]


def _paths(dataset: object) -> Iterator[str]:
    """Yields the locations in the options of a data set and of the data sets inside."""
    if isinstance(dataset, Mapping):
        if isinstance(path := dataset.get("path"), str):
            yield path
        for option in dataset.values():
            yield from _paths(option)
    elif isinstance(dataset, list | tuple):
        for part in dataset:
            yield from _paths(part)


def _files_at(location: str) -> list[Path]:
    """Returns the local files at a location: one, those of a folder, or those of a pattern; none of a URL."""
    if Path(location).is_dir():
        entries = list(Path(location).rglob("*"))
    else:
        entries = [Path(name) for name in glob.glob(location)]  # noqa: PTH207 (pathlib's takes no absolute pattern)
    return [entry for entry in entries if entry.is_file()]


def _content_hash(files: Iterable[Path]) -> str:
    whole = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:
            whole.update(hashlib.file_digest(content, "sha256").digest())
    return whole.hexdigest()[:16]


def _downloads(specs: Iterable[PluginSpec]) -> Iterator[tuple[tuple[str, ...], str, RemoteSource]]:
    """Yields the path of each plugin that reads a download, its option for a local folder, and the download."""
    for path, registry, spec in specs:
        if registry is not models and registry is not datasets:
            continue
        inner = ((below, datasets, dataset) for below, dataset in _inner_datasets(spec))
        for below, own_registry, own_spec in (((), registry, spec), *inner):
            options = own_registry.check(own_spec)
            source = options.remote_source() if isinstance(options, RemoteOptions) else None
            if isinstance(options, RemoteOptions) and source is not None:
                yield (*path, *below), options.location_option, source


def _inner_datasets(spec: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Yields the data sets inside the options of another plugin, such as the parts of a mixture or the
    examples of a model."""
    for key, value in spec.items():
        if not isinstance(value, Mapping):
            continue
        if key == "dataset":
            yield (key,), value
        for below, inner in _inner_datasets(value):
            yield (key, *below), inner
