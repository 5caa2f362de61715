"""Measurements: each engine in a process and an environment of its own, all against the same server, interleaved."""
