"""Cost of the weight store: catching up, uploading versions, and serving bytes."""
