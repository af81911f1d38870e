"""Benchmark programs: `python -m benchmarks.NAME --help`, from the root of a checkout."""
