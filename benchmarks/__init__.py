"""Programs that measure AstraFlow: `python -m benchmarks.NAME`. `docs/benchmarks.md` has their figures."""
