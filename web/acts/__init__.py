"""What people do here, on their behalf: asked of the planes, entered in the audit, and told."""
