"""`astraflow fetch RECIPE`: what a recipe downloads, one data root for all of it, and reading it without a network."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from typer.testing import CliRunner

from astraflow.cli.main import app
from astraflow.contract.errors import AstraFlowError, Conflict, CorruptData, InvalidInput, StorageFull, Unavailable
from astraflow.datasets import datasets
from astraflow.fetching import recipe_downloads
from astraflow.fetching.recipe_downloads import fetch_sources, verify_sources
from astraflow.models.fetched import model as fetched
from astraflow.models.fetched import packages
from astraflow.recipe.loading import Check, load_recipe
from astraflow.recipe.plugins import plugin_specs
from astraflow.recipe.sources import remote_sources
from astraflow.runtime.folders.data_root import MANIFEST, DataRoot, FetchedSource, RemoteSource
from astraflow.runtime.locks import exclusive_lock
from tests.datasets import tables
from tests.errors import raises_code
from tests.fakes.hub import FakeHub
from tests.fakes.model_package import write_model_package

MODEL, DATASET = "owner/model", "open-r1/DAPO-Math-17k-Processed"
CONFIGS = [
    {"config_name": name, "data_files": [{"split": "train", "path": f"{name}/*.parquet"}]} for name in ("en", "zh")
]
ROWS = [{"prompt": f"{n}+1?", "solution": str(n + 1), "ability": "sums", "data_source": "own"} for n in range(5)]
RECIPE = f"""
extends = "smoke"
name = "fetched"
policies.solver.model = {{ kind = "huggingface", path = "{MODEL}", revision = "main" }}
flows.train.dataset = {{ kind = "mixture", parts.sums.dataset = {{ kind = "math", name = "dapo" }} }}
flows.train.reward = {{ kind = "exact_match" }}
"""


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> FakeHub:
    folder = tmp_path_factory.mktemp("repositories")
    model, dataset = folder / "model", folder / "dataset"
    (model / "onnx").mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "pytorch_model.bin", "onnx/model.onnx", ".gitattributes"):
        (model / name).write_text(f"content of {name}")
    card = "---\nconfigs:\n" + "".join(
        f"- config_name: {name}\n  data_files:\n  - split: train\n    path: {name}/*.parquet\n" for name in ("en", "zh")
    )
    for name in ("en", "zh"):
        (dataset / name).mkdir(parents=True)
        tables.write_parquet(dataset / name / "rows.parquet", ROWS)
    (dataset / "README.md").write_text(f"{card}---\n")
    hub = FakeHub()
    hub.add(f"models/{MODEL}", model)
    hub.add(f"datasets/{DATASET}", dataset, {"license": "apache-2.0", "configs": CONFIGS})
    return hub


@pytest.fixture
def hub(repositories: FakeHub, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    own = FakeHub(repositories=repositories.repositories, cards=repositories.cards)
    with own.serving():
        own.use(monkeypatch)
        yield own


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return str(tmp_path / "recipe.toml")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def sources_of(recipe: str, *overrides: str) -> list[RemoteSource]:
    return remote_sources(plugin_specs(load_recipe(recipe, overrides, check=Check.NONE)))


def fetch(recipe: str, root: Path, *overrides: str) -> list[FetchedSource]:
    return fetch_sources(sources_of(recipe, *overrides), root, command="the command", progress=lambda _line: None)


def test_parts_of_one_repository_are_one_download() -> None:
    both = 'flows.train.dataset={kind="mixture", parts={a={dataset={kind="code", name="livecodebench_v5"}}, '
    both += 'b={dataset={kind="code", name="livecodebench_v6"}}, c={dataset={kind="code", name="humaneval"}}}}'
    assert [(source.name, source.parts) for source in sources_of("smoke", both)] == [
        ("livecodebench/code_generation_lite", ("test5.jsonl", "test6.jsonl")),
        ("openai/openai_humaneval", ("",)),
    ]


def test_a_full_size_recipe_names_model_data_and_evaluations() -> None:
    names = {source.name for source in sources_of("math")}
    assert {"Qwen/Qwen3-8B", "agentica-org/DeepScaleR-Preview-Dataset", "HuggingFaceH4/MATH-500"} <= names


def test_the_examples_of_a_model_are_a_download_as_well() -> None:
    assert sources_of("reverse") == []
    examples = 'policies.solver.model.warm_start.dataset={kind="math", name="amc"}'
    assert [source.name for source in sources_of("reverse", examples)] == ["math-ai/amc23"]


@pytest.mark.parametrize(
    "dataset",
    [
        {"kind": "math", "name": "amc", "is_sample": True},
        {"kind": "math", "name": "amc", "path": "copy.jsonl"},
        {"kind": "huggingface", "path": "/data/copy"},
    ],
)
def test_local_data_is_no_download(dataset: dict[str, object]) -> None:
    assert remote_sources([(("flows", "train", "dataset"), datasets, dataset)]) == []


def test_a_data_root_has_the_files_that_a_recipe_reads_with_commit_and_licence(
    hub: FakeHub, recipe: str, root: Path
) -> None:
    model, dataset = fetch(recipe, root)
    assert [file.path for file in model.files] == [
        f"models/{MODEL}@main/{name}" for name in ("config.json", "model.safetensors")
    ]
    assert [file.path for file in dataset.files] == [
        f"datasets/{DATASET}/{name}" for name in ("README.md", "en/rows.parquet")
    ]
    assert (dataset.commit, dataset.license) == (hub.commit(f"datasets/{DATASET}"), "apache-2.0")
    assert (model.license, model.revision) == ("", "main")
    assert DataRoot(root).sources() == [model, dataset]
    assert verify_sources(sources_of(recipe), root, command="") == [model, dataset]

    hub.files_sent.clear()
    hub.status = 503
    assert fetch(recipe, root) == [model, dataset]
    assert hub.files_sent == []


def test_a_recipe_reads_its_downloads_from_the_data_root(
    hub: FakeHub, recipe: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch(recipe, root)
    hub.status = 503
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    offline = load_recipe(recipe, [f"data_root={root}"], check=Check.NONE)
    assert offline.policies["solver"].model["path"] == str(root / "models" / f"{MODEL}@main")
    sums = offline.flows["train"].dataset["parts"]["sums"]["dataset"]
    assert datasets.build({**sums, "cache": str(tmp_path / "cache")}, 0).size == len(ROWS)
    assert sources_of(recipe, f"data_root={root}") == []

    (root / "models" / f"{MODEL}@main" / "config.json").write_text("torn")
    with raises_code(InvalidInput, "recipe.data_root_incomplete", "config.json: 4 of ", f"astraflow fetch {recipe}"):
        load_recipe(recipe, [f"data_root={root}"], check=Check.NONE)
    with raises_code(InvalidInput, "recipe.data_root_incomplete"):
        load_recipe(recipe, [f"data_root={tmp_path}"], check=Check.NONE)


def test_another_part_of_a_repository_is_added_to_it(hub: FakeHub, recipe: str, root: Path) -> None:
    fetch(recipe, root)
    hub.files_sent.clear()
    chinese = f'flows.train.dataset={{kind="huggingface", path="{DATASET}", name="zh", question_field="prompt"}}'
    _, dataset = fetch(recipe, root, chinese)
    assert dataset.parts == ("config:en", "config:zh")
    assert hub.files_sent == ["zh/rows.parquet"]
    assert len(verify_sources(sources_of(recipe), root, command="")) == 2


def test_a_wrong_content_is_refused_and_the_next_call_fetches_only_the_rest(
    hub: FakeHub, recipe: str, root: Path
) -> None:
    size = len(hub.repositories[f"datasets/{DATASET}"]["en/rows.parquet"])
    hub.replaced["en/rows.parquet"] = bytes(size)
    with raises_code(CorruptData, "fetch.wrong_hash", "en/rows.parquet"):
        fetch(recipe, root)
    assert [source.name for source in DataRoot(root).sources()] == [MODEL]

    hub.replaced.clear()
    hub.files_sent.clear()
    fetch(recipe, root)
    assert hub.files_sent == ["en/rows.parquet"]


def test_missing_torn_and_changed_files_are_named_and_fetched_again(hub: FakeHub, recipe: str, root: Path) -> None:
    model, dataset = fetch(recipe, root)
    config, weights, table = (root / model.files[0].path, root / model.files[1].path, root / dataset.files[1].path)
    config.unlink()
    weights.write_bytes(weights.read_bytes()[:5])
    table.write_bytes(bytes(dataset.files[1].size_bytes))
    problems = ("config.json: missing", "model.safetensors: 5 of ", "rows.parquet: other content", "`fetch again`")
    with raises_code(CorruptData, "fetch.changed_files", *problems):
        verify_sources(sources_of(recipe), root, command="fetch again")

    hub.files_sent.clear()
    fetch(recipe, root)
    assert sorted(hub.files_sent) == ["config.json", "en/rows.parquet", "model.safetensors"]
    verify_sources(sources_of(recipe), root, command="")


def test_a_disk_that_is_too_small_is_refused_before_anything_is_sent(
    hub: FakeHub, recipe: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(root.parent)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: usage._replace(free=10))
    with raises_code(StorageFull, "fetch.no_space", str(root)):
        fetch(recipe, root)
    assert hub.files_sent == []


@pytest.mark.parametrize(
    ("status", "error", "code", "quoted"),
    [
        (503, Unavailable, "fetch.no_network", "`the command`"),
        (403, InvalidInput, "fetch.refused", "HF_TOKEN"),
        (404, InvalidInput, "fetch.refused", "404"),
    ],
)
def test_a_hub_that_refuses_is_reported_with_a_remedy(
    hub: FakeHub, recipe: str, root: Path, status: int, error: type[AstraFlowError], code: str, quoted: str
) -> None:
    hub.status = status
    with raises_code(error, code, MODEL, quoted):
        fetch(recipe, root)


def test_without_a_network_the_error_names_the_command(
    recipe: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with raises_code(Unavailable, "fetch.no_network", "`the command`"):
        fetch(recipe, root)


def test_a_part_that_the_repository_lacks_is_refused(hub: FakeHub, recipe: str, root: Path) -> None:
    other = f'flows.train.dataset={{kind="huggingface", path="{DATASET}", files=["none.jsonl"]}}'
    with raises_code(InvalidInput, "fetch.unknown_part", "none.jsonl", "en/rows.parquet"):
        fetch(recipe, root, other)


def test_a_mirror_writes_and_deletes_nothing_outside_of_the_data_root(
    hub: FakeHub, recipe: str, root: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim.json"
    victim.write_text("own")
    hostile = {str(victim): b"other", "../../victim.json": b"other", "a/../../../victim.json": b"other"}
    name = f"models/{MODEL}"
    hub.repositories = hub.repositories | {name: hub.repositories[name] | hostile}

    fetched = fetch_sources(sources_of(recipe), root, command="fetch", progress=print)

    assert victim.read_text() == "own"
    assert not any("victim" in file.path for source in fetched for file in source.files)


def test_a_folder_with_other_files_or_a_damaged_manifest_is_refused(recipe: str, root: Path) -> None:
    root.mkdir()
    (root / "notes.txt").touch()
    with raises_code(InvalidInput, "fetch.target_in_use"):
        fetch(recipe, root)
    (root / MANIFEST).write_text('{"sources": [1]}')
    with raises_code(CorruptData, "fetch.damaged_manifest", MANIFEST):
        fetch(recipe, root)


def test_two_processes_do_not_fetch_into_one_folder(recipe: str, root: Path) -> None:
    root.mkdir()
    lock = exclusive_lock(root / recipe_downloads._LOCK, refusal=Conflict("held"))
    with lock, raises_code(Conflict, "fetch.in_progress"):
        fetch(recipe, root)


def test_a_model_of_the_package_index_is_a_source_as_well(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model_package(tmp_path)
    for module in (packages, fetched):
        monkeypatch.setattr(module, "PACKAGED_MODELS", {"tiny-model": model})
    monkeypatch.setattr(fetched, "downloaded_wheel", lambda _model, _progress: tmp_path / model.wheel)
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    chosen = 'policies.solver.model={kind="fetched", name="tiny-model"}'

    (source,) = fetch("smoke", root, chosen)

    assert (source.commit, source.license) == ("tiny-model 1.0", "Apache License 2.0")
    offline = load_recipe("smoke", [chosen, f"data_root={root}"], check=Check.NONE)
    assert offline.policies["solver"].model["folder"] == str(root / "models" / "tiny-model")
    fetched.verify_model("tiny-model", offline.policies["solver"].model["folder"])


def test_the_command_names_the_run_that_needs_no_network(hub: FakeHub, recipe: str, root: Path) -> None:
    def call(*arguments: str) -> str:
        return CliRunner().invoke(app, ["fetch", *arguments], catch_exceptions=False).output

    assert "downloads nothing" in call("smoke")
    with raises_code(InvalidInput, "fetch.no_target", MODEL):
        call(recipe)
    assert f"astraflow run {recipe} --set data_root={root}" in call(recipe, "--to", str(root))
    assert "4 files are unchanged" in call(recipe, "--to", str(root), "--verify")
