"""Schemas and parameters of the REST API that several features use."""
