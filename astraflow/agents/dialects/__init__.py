"""API dialects of model calls: how each parses requests and expresses replies, streams and errors."""
