"""The selected entries of the ranks of a sharded context, in order of position."""
