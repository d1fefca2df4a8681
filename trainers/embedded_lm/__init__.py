"""The embedded language model: weights, model card, and the scripts that pre-train and evaluate it."""
