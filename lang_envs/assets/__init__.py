"""The embedded tokenizer and the script that trained it."""

from pathlib import Path

TOKENIZER_FILE = Path(__file__).with_name("tokenizer.json")
"""The embedded tokenizer, in the format of the library ``tokenizers``."""
