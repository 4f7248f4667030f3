"""CuTe DSL takes part in resampling of trajectories. Every leaf has a text."""
