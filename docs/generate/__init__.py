"""Writes the parts of the documents that come from the code: `python -m docs.generate` writes the reference pages, and
`python -m docs.generate.screenshots` takes the pictures."""
