"""Weights page and endpoints: published versions, transfers and lagging nodes."""
