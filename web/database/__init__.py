"""Database of the web process: tables, migrations, and records of runs."""
