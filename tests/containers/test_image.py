from configparser import ConfigParser
from pathlib import Path

from tests.containers.image import local_wheels, pip_configuration, torch_variant

SETTINGS = [
    ("index-url", "https://index.example/simple"),
    ("extra-index-url", "file:///opt/index https://more.example/simple"),
    ("trusted-host", "index.example"),
]


def test_the_build_uses_the_package_indexes_of_the_host_but_no_local_folders() -> None:
    parser = ConfigParser()
    parser.read_string(pip_configuration([*SETTINGS, ("find-links", "/opt/wheels")]))
    global_settings = dict(parser["global"])
    assert global_settings["index-url"] == "https://index.example/simple"
    assert global_settings["extra-index-url"] == "https://more.example/simple"
    assert global_settings["trusted-host"] == "index.example"
    assert "find-links" not in global_settings


def test_only_torch_wheels_are_taken_from_local_folders(tmp_path: Path) -> None:
    for name in ("torch-1+cpu-cp311.whl", "numpy-1-cp311.whl"):
        (tmp_path / name).touch()
    settings = [*SETTINGS, ("find-links", f"https://links.example file://{tmp_path} {tmp_path}")]
    assert local_wheels(settings) == [tmp_path / "torch-1+cpu-cp311.whl"]
    assert torch_variant(settings) == "cpu"


def test_torch_is_for_the_cpu_where_pip_has_an_index_of_such_wheels() -> None:
    assert torch_variant(SETTINGS) == "cuda"
    assert torch_variant([*SETTINGS, ("extra-index-url", "https://torch.example/whl/cpu")]) == "cpu"
