"""Admission: decides after rollout which finished groups enter which policy's stream."""
