"""Whether a variant is right: `trial` runs one against the reference, `runs` keeps the record of where it matched."""
