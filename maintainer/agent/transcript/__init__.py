"""Transcript of the maintainer: the hash-chained file, what follows from its entries, its upload and its replay."""
