"""Needs of a recipe that this machine lacks: models, data sets, engines, services, each with its command."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow.dataflow.config import EvaluationConfig, FlowConfig
from astraflow.datasets.published.code import CODE_SETS
from astraflow.datasets.published.loading import PublishedSet
from astraflow.datasets.published.math import MATH_SETS
from astraflow.datasets.published.search import SEARCH_SETS
from astraflow.models.shapes import known_model
from astraflow.recipe.config import Recipe
from astraflow.runtime.folders.data_root import is_hub_name

_PUBLISHED: Mapping[str, Mapping[str, Any]] = {"math": MATH_SETS, "code": CODE_SETS, "search": SEARCH_SETS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Files or a service that a run needs."""

    name: str
    is_here: bool | None
    """None where it cannot be seen without a network."""
    command: str
    """Command that brings or starts it; or what to do."""


def needs(recipe: Recipe) -> list[Need]:
    """Returns what the recipe needs, each once."""
    flows: list[FlowConfig | EvaluationConfig] = [*recipe.flows.values(), *recipe.evaluations.values()]
    downloads = [need for policy in recipe.policies.values() for need in _model(policy.model)]
    downloads += [need for flow in flows for need in dataset_needs(flow.dataset)]
    downloads += [need for flow in flows for need in _services(flow.workflow)]
    kinds = {str(engine.get("kind")) for engine in (recipe.nodes.engine, *recipe.nodes.engines.values())}
    downloads += [
        Need(name=f"engine {kind}", is_here=None, command=f"astraflow engines install {kind}")
        for kind in sorted(kinds & {"sglang", "vllm"})
    ]
    return list({need.name: need for need in downloads}.values())


def published_set(dataset: Mapping[str, Any]) -> PublishedSet | None:
    """Returns the place of a published data set on the hub; None for other kinds."""
    entry = _PUBLISHED.get(str(dataset.get("kind")), {}).get(str(dataset.get("name")))
    published: PublishedSet | None = getattr(entry, "published", entry)
    return published


def _model(spec: Mapping[str, Any]) -> Iterator[Need]:
    if spec.get("kind") == "fetched":
        from astraflow.models.fetched.model import fetched_folder

        folder = fetched_folder(str(spec.get("name")), str(spec.get("folder", "")))
        yield Need(name=f"model {spec['name']}", is_here=folder.is_dir(), command=f"astraflow fetch {spec['name']}")
    elif spec.get("kind") == "huggingface":
        path, known = str(spec["path"]), known_model(spec)
        if is_hub_name(path):
            yield Need(
                name=f"model {path}", is_here=False, command="astraflow fetch RECIPE --to DIR; then set data_root = DIR"
            )
            return
        hub = known.hub if known else "OWNER/NAME"
        is_here = any(Path(path).expanduser().glob("*.safetensors"))
        yield Need(name=f"model {path}", is_here=is_here, command=f"hf download {hub} --local-dir {path}")


def dataset_needs(spec: Mapping[str, Any]) -> Iterator[Need]:
    """Yields what a data set needs."""
    kind, path = str(spec.get("kind")), str(spec.get("path", ""))
    is_here = Path(path).expanduser().exists() if path else None
    if spec.get("is_sample"):
        return
    if published := published_set(spec):
        local_folder = "" if not path else f" --local-dir {_folder(path, published)}"
        files = "".join(f" {file}" for file in published.files)
        command = f"hf download --repo-type dataset {published.hub}{files}{local_folder}"
        yield Need(name=f"data {kind} {spec['name']}", is_here=is_here, command=command)
    elif kind == "alfworld" and path:
        yield Need(name="data alfworld", is_here=is_here, command=f"ALFWORLD_DATA={path} alfworld-download")
    elif kind == "terminal" and path:
        yield Need(
            name=f"data {path}", is_here=is_here, command=f"put task folders in the format of Harbor into {path}"
        )
    elif kind == "webshop" and (folder := str((spec.get("store") or {}).get("folder", ""))):
        yield Need(
            name="data webshop",
            is_here=Path(folder).expanduser().is_dir(),
            command=f"put items_shuffle.json, items_ins_v2.json and items_human_ins.json of WebShop into {folder}",
        )


def _folder(path: str, published: PublishedSet) -> str:
    """Returns the folder to download into, so that the files of the set are where the recipe reads them."""
    for file in published.files:
        if path.endswith(f"/{file}"):
            return path.removesuffix(f"/{file}")
    return path


def _services(workflow: Mapping[str, Any]) -> Iterator[Need]:
    environment = workflow.get("environment") or {}
    if environment.get("kind") == "http":
        url = str(environment["url"])
        yield Need(
            name=f"environment at {url}",
            is_here=None,
            command=f"python -m astraflow.environments.serve '{{\"kind\": ...}}' --port {url.rpartition(':')[2]}",
        )
    if environment.get("kind") == "terminal" and environment.get("runner", "sandbox") == "sandbox":
        yield Need(
            name="for tests with servers or several processes: isolation by namespaces",
            is_here=None,
            command="astraflow doctor shows the level; if restricted, set runner = 'docker', 'podman' or 'kubernetes'",
        )
    for tool in workflow.get("tools", ()):
        if tool.get("kind") == "search" and (url := tool.get("url")):
            yield Need(
                name=f"search service at {url}",
                is_here=None,
                command=f"python -m astraflow.search.service --corpus CORPUS.jsonl --index FOLDER --port "
                f"{str(url).rpartition(':')[2]}",
            )
