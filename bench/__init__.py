"""Benchmarks of trnwatch, each with a comparable program in the same run."""
