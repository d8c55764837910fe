"""Before rollout: decides which prompt is issued when, and which node holds which task."""
