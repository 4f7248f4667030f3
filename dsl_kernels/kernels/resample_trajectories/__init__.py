"""Resampling of trajectories at other times, by linear interpolation."""
