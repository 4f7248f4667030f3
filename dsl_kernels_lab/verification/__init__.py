"""Whether a variant is right: `trial` compares one with the reference, `runs` records where it matched."""
