"""Full-text search in a corpus of documents: index, service, and the corpus of generated facts."""
