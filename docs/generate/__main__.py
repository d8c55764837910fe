"""`python -m docs.generate` writes every reference page that comes from the code, and the moving chart."""

from docs.generate import balance
from docs.generate.pages import PAGES

for page in PAGES:
    page.path.write_text(page.text())
balance.PATH.write_text(balance.drawing())
