"""Provider `static_ssh`: nodes on a fixed set of hosts, over SSH."""
