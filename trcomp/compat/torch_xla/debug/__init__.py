"""A package of the torch_xla module tree: counters, traces, graphs as files."""
