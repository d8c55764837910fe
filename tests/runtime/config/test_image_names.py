"""Names of container images."""

import pytest

from astraflow.runtime.config.base import is_image_name


@pytest.mark.parametrize(
    "name",
    ["debian", "debian:bookworm-slim", "localhost:5000/a/b_c__d.e-f:1", f"ghcr.io/a/b:1@sha256:{'0' * 64}", "a.b.c/d"],
)
def test_names_of_images(name: str) -> None:
    assert is_image_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-v=/:/x",
        "--privileged",
        "a b",
        "a\n",
        "Debian",
        "a;b",
        "$(id)",
        "a/-b",
        "../a",
        "a:",
        "a@sha256:1",
        "a" * 600,
    ],
)
def test_a_text_that_is_no_name_of_an_image(name: str) -> None:
    assert not is_image_name(name)
