"""Benchmarks. They are no part of the package: run them from the repository, with `make bench`."""
