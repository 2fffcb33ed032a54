"""Train PyTorch through the XLA compiler with one flag."""

from trcomp._version import __version__

__all__ = ["__version__"]
