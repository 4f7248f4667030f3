"""Dense grouped-query attention, forward: causal or full, ragged lengths."""
