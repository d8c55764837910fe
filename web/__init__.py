"""The control plane's pages: watches and steers a run, and is never on the path of data or weights."""
