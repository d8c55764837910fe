"""Writes what the code says: `python -m docs.generate` the committed pages and the moving chart, and
`python -m docs.generate FOLDER` all pages of the reference into a folder, for the site."""

import sys
from pathlib import Path

from docs.generate import balance
from docs.generate.pages import PAGES


def main() -> None:
    """Writes the files."""
    if sys.argv[1:]:
        folder = Path(sys.argv[1])
        folder.mkdir(parents=True, exist_ok=True)
        for page in PAGES:
            (folder / page.path.name).write_text(page.text())
        return
    for page in PAGES:
        if page.is_committed:
            page.path.write_text(page.text())
    balance.PATH.write_text(balance.drawing())


if __name__ == "__main__":
    main()
