"""Commands of viewers: executed on the planes, audited, and answered with a message."""
