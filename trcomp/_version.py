"""trcomp's version, alone in a file so that the build reads it without importing trcomp."""

__version__ = "0.1.0.dev0"
