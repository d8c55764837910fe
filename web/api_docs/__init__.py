"""Reference of the REST API: the page `/api/v1/docs` and the OpenAPI document, with examples."""
