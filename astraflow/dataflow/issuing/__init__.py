"""Before rollout: which prompt is issued when, and which node holds which task."""
