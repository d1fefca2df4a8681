"""Text environments for language agents. Importing this package registers every id with Gymnasium."""

from lang_envs.core import LanguageEnv, Transition
from lang_envs.registration import ENVIRONMENTS, register_environments
from lang_envs.storage import storable
from lang_envs.tokenizer import Tokenizer, load_tokenizer
from lang_envs.tokens import TokenEnv, TokenSequence
from lang_envs.vector import LanguageVectorEnv, make_vec

__all__ = [
    "ENVIRONMENTS",
    "LanguageEnv",
    "LanguageVectorEnv",
    "TokenEnv",
    "TokenSequence",
    "Tokenizer",
    "Transition",
    "load_tokenizer",
    "make_vec",
    "storable",
]
__version__ = "0.1.0"

register_environments()
