"""After rollout: which groups are kept, and for which policy."""
