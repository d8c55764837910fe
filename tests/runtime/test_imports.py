"""Modules that a process loads."""

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.imports import needs_extra, require_package
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
