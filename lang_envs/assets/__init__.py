"""The embedded tokenizer and the script that trained it."""
