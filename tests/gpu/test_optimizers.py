"""The compiled update of 8-bit moments on a device."""

import pytest
import torch

from tests.trainer.engines.compiled_updates import check_compiled_update


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself, where the compiler is imported
def test_the_compiled_update_of_8_bit_moments_is_that_of_single_operations(device: torch.device) -> None:
    check_compiled_update(device)
