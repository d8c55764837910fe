"""Folders of this machine: the cache, runs, downloads, and locations that launched runs may read."""
