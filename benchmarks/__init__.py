"""Figures that say how fast trcomp is, as ratios to a peer measured in the same run."""
