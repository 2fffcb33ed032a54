"""Whole steps: a training step is captured once and replayed as one node (`trcomp.step`)."""
