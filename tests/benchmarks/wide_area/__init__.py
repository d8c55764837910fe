"""Weights over a long, thin or bad link: a link of our own between network namespaces, and what is reached over it."""
