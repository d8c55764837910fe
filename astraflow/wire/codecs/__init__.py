"""Codecs between contract types and messages: a generic converter, and by hand those with arrays and columns."""
