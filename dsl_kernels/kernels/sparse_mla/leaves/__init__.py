"""Leaves of sparse MLA, by their text: ids, gathers, scores, softmax, results, and Blackwell's schedules."""
