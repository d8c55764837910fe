"""Device of the tests: `TEST_DEVICE`, by default the first GPU."""

import os

import pytest
import torch

from astraflow.models.precision import device_of


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Device that the tests run on. Raises: InvalidInput when there is no GPU and no other device was chosen."""
    return device_of(os.environ.get("TEST_DEVICE", "cuda"))
