"""Modules that a process loads."""

import subprocess
import sys

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.imports import hidden_module, needs_extra, require_package
from tests.errors import raises_code


def test_a_missing_package_is_answered_with_its_extra() -> None:
    with raises_code(InvalidInput, "package.missing", "cannot grill: ", "'no_such_package'", "'astraflow[kitchen]'"):
        require_package("no_such_package", extra="kitchen", to="grill")
    with raises_code(InvalidInput, "package.missing", "install it"), needs_extra("", to="grill"):
        __import__("no_such_package")
    require_package("pytest", extra="dev", to="test")


def test_a_missing_module_of_astraflow_is_a_defect() -> None:
    with pytest.raises(ModuleNotFoundError), needs_extra("train", to="train"):
        __import__("astraflow.no_such_module")


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
