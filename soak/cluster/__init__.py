"""A whole run on two hosts, with PostgreSQL, a bucket, mutual TLS and a mirror, under random faults."""
