"""CuTe DSL needs nothing here: each leaf of sparse MLA has a text. This file says that the DSL takes part."""
