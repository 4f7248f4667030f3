"""That CuTe DSL takes part in row_softmax, whose leaves all have a text."""
