"""Checkpoints of a training script: atomic, written aside, resumed bit for bit."""

from trcomp.checkpoint.checkpointer import Checkpointer

__all__ = ["Checkpointer"]
