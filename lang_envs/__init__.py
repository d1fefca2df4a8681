"""Worlds for language agents. Importing this package registers every id with Gymnasium."""

from lang_envs.core import LanguageEnv, Transition
from lang_envs.registration import WORLDS, register_worlds
from lang_envs.tokenizer import Tokenizer, load_tokenizer
from lang_envs.tokens import TokenEnv, TokenSequence

__all__ = ["WORLDS", "LanguageEnv", "TokenEnv", "TokenSequence", "Tokenizer", "Transition", "load_tokenizer"]
__version__ = "0.1.0"

register_worlds()
