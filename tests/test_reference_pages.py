"""The generated pages of docs/reference match the code."""

import pytest

from docs.generate.page import Page
from docs.generate.pages import PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_reference_pages_match_the_code(page: Page) -> None:
    assert page.path.read_text() == page.text(), "run `python -m docs.generate`"
