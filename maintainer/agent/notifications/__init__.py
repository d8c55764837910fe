"""Notices for people: a queue in a file, the webhook that delivers them, and the relay of journal entries."""
