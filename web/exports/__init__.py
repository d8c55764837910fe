"""Static export of a run: one HTML file with charts, samples, settings, events and the hash of the audit log."""
