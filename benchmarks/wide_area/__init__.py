"""Weights over a long, thin or bad link: a simulated link between network namespaces, and transfer rates over it."""
