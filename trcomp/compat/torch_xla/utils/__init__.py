"""A package of the torch_xla module tree."""
