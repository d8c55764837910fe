"""Published datasets of mathematics, programs and questions, and the common parts of their loaders."""
