"""Graphs that torch.compile traced: cut into parts, rewritten, recorded as one node each."""
