"""Trajectories resampled at other times, by linear interpolation."""
