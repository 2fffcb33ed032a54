"""Contestants of the benchmarks: each a process that trains one model when it is told to."""
