"""Command line: starts single roles or a whole run on this machine, and inspects and controls runs."""
