"""`python -m docs.generate` writes every reference page that comes from the code."""

from docs.generate.pages import PAGES

for page in PAGES:
    page.path.write_text(page.text())
