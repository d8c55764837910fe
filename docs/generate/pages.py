"""The generated reference pages."""

from docs.generate import algorithms, errors, metrics
from docs.generate.page import Page

PAGES: tuple[Page, ...] = (algorithms.PAGE, errors.PAGE, metrics.PAGE)
