"""The embedded language model: weights, model card, and the script that makes them."""
