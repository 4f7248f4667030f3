"""Makes CuTe DSL take part in row_softmax, whose leaves all have a text."""
