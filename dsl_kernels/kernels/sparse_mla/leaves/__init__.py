"""Leaves of sparse MLA, by their text: ids and gathers, scores and softmax, results, and Blackwell's schedules."""
