"""Modules that a process loads."""

import subprocess
import sys

import pytest

from astraflow.runtime.imports import hidden_module


def test_a_hidden_module_is_restored_after_the_block() -> None:
    import colorsys

    with hidden_module("colorsys"), pytest.raises(ModuleNotFoundError):
        __import__("colorsys")

    assert sys.modules["colorsys"] is colorsys


def test_a_module_hidden_before_its_import_can_be_loaded_later() -> None:
    program = (
        "import sys; from astraflow.runtime.imports import hidden_module\n"
        "with hidden_module('colorsys'): pass\n"
        "assert 'colorsys' not in sys.modules\n"
        "import colorsys\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
