"""Tests of tokenizers: the embedded one and Hugging Face ones of both families are lossless."""

import copy
import json
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from lang_envs import TokenEnv, Tokenizer, load_tokenizer
from lang_envs.assets import TOKENIZER_FILE
from lang_envs.assets.train_tokenizer import train

TRAINED_ON = [
    "Make a tomato salad. You stand at the cutting board. Your hands are empty. get the tomato",
    "go to the cutting board chop get the bowl deliver the dish model = RandomForestClassifier ( n = 100 )",
] * 20
TRICKY = (
    "",
    " ",
    "   leading and trailing   ",
    "\n",
    "\n\n  a\n",
    "tab\tand\r\nline ends\r",
    "null \x00 and \x7f and \x1b[0m",
    "caf\u00e9 cafe\u0301 \u1e9b\u0323",
    "\U0001f955\U0001f468\u200d\U0001f469\u200d\U0001f467\U0001f3fd \u0e33 \u202eright to left",
    "\u4f60\u597d \ufeff\uffff \U0010ffff \ufffd",
    "\u2581 is how SentencePiece writes a space \u0120 and how byte-level tokenizers do",
    "<|end|><|pad|><|begin|> <s></s><unk> <0x0A> [INST] <|im_end|>",
    "def build_model(x_train, y_train):\n    model = f(\n        'a',  # don't\n    )\n    return model\n",
)
PHRASES = ("get the tomato", "go to the cutting board", "chop", 'don\'t, "please"', "\u00e9t\u00e9")


def random_text(chooser: random.Random) -> str:
    """Characters from everywhere but the surrogates."""
    ranges = [
        (0, 0x7F),
        (0, 0x7F),
        (0x80, 0x24F),
        (0x300, 0x36F),
        (0x2000, 0x2FFF),
        (0x4E00, 0x9FFF),
        (0x1F300, 0x1FAFF),
    ]
    text = []
    for _ in range(chooser.randrange(40)):
        low, high = chooser.choice([*ranges, (0, 0xD7FF), (0xE000, 0x10FFFF)])
        text.append(chr(chooser.randint(low, high)))
    return "".join(text)


def assert_keeps_everything(tokenizer: Tokenizer, *, but: str | None = None) -> None:
    chooser = random.Random(0)
    for text in (*TRICKY, *(random_text(chooser) for _ in range(500))):
        if but is not None:
            text = text.replace(but, "")
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert all(0 <= i < tokenizer.vocab_size for i in ids)
        assert not {tokenizer.end_id, tokenizer.begin_id} & set(ids), "no special token is read out of text"


def assert_spans_decode_to_phrases(tokenizer: Tokenizer) -> None:
    observation = "You stand at the cutting board."
    observation_ids = tokenizer.encode(observation)
    for phrase in PHRASES:
        action = tokenizer.encode_action(phrase)
        assert action[-1] == tokenizer.end_id
        assert tokenizer.decode(action[:-1]) == f" {phrase}"
        assert tokenizer.decode((*observation_ids, *action[:-1])) == f"{observation} {phrase}", (
            "joined to its prompt too"
        )


# --------------------------------------------------------------------------------------------------- the embedded one


def test_embedded_tokenizer_is_lossless() -> None:
    assert_keeps_everything(load_tokenizer())
    assert_spans_decode_to_phrases(load_tokenizer())


def test_training_the_embedded_tokenizer_again_gives_the_same_file(tmp_path: Path) -> None:
    train().save(str(tmp_path / "tokenizer.json"))
    assert (tmp_path / "tokenizer.json").read_text() == TOKENIZER_FILE.read_text()


def test_embedded_tokenizer_has_distinct_special_tokens_that_no_text_contains() -> None:
    tokenizer = load_tokenizer()
    special = (tokenizer.pad_id, tokenizer.begin_id, tokenizer.end_id)
    assert len(set(special)) == 3
    assert len(tokenizer.encode("<|end|>")) > 1
    assert tokenizer.prompt((9, 10)) == (tokenizer.begin_id, 9, 10)


@pytest.mark.parametrize("text", ["\ud800", "ab\udfffc"])
def test_lone_surrogate_is_rejected_with_its_position(text: str) -> None:
    place = next(k for k, letter in enumerate(text) if "\ud800" <= letter <= "\udfff")
    with pytest.raises(ValueError, match=f"not valid Unicode at character {place}: surrogates"):
        load_tokenizer().encode(text)


@pytest.mark.parametrize("text", [None, b"chop", 3, ["chop"]])
def test_text_that_is_not_a_str_is_rejected(text: Any) -> None:
    with pytest.raises(ValueError, match=f"text must be a str, not {type(text).__name__}"):
        load_tokenizer().encode(text)


def test_half_a_character_decodes_to_the_replacement_character() -> None:
    tokenizer = load_tokenizer()
    assert tokenizer.decode(tokenizer.encode("\u00e9")[:1]) == "\ufffd"


def test_loading_again_returns_the_same_tokenizer() -> None:
    tokenizer = load_tokenizer()
    assert load_tokenizer("embedded") is tokenizer
    assert load_tokenizer(tokenizer) is tokenizer
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again == tokenizer
    assert hash(again) == hash(tokenizer)
    assert again.encode("get the tomato") == tokenizer.encode("get the tomato")
    assert tokenizer != "embedded"


# ---------------------------------------------------------------------- Hugging Face tokenizers, made on the spot


def byte_level(normalizer: Any = None, special: tuple[str, ...] = ("<s>", "</s>")) -> tokenizers.Tokenizer:
    """In the manner of GPT-2, Llama 3 and Qwen."""
    backend = tokenizers.Tokenizer(models.BPE())
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=350,
        special_tokens=list(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(TRAINED_ON, trainer)
    return backend


def sentence_piece(prefix: str) -> tokenizers.Tokenizer:
    """In the manner of Llama 2 and Mistral: a space before the text, bytes for what the vocabulary lacks."""
    words = tokenizers.Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    words.train_from_iterator(TRAINED_ON, trainers.BpeTrainer(vocab_size=150, show_progress=False))
    learned = json.loads(words.to_str())["model"]
    special = ["<unk>", "<s>", "</s>"]
    vocabulary = {t: k for k, t in enumerate([*special, *(f"<0x{b:02X}>" for b in range(256)), *learned["vocab"]])}
    merges = [tuple(merge) for merge in learned["merges"]]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    if prefix == "normalizer":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prefix, split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(special)
    return backend


def hugging_face(backend: tokenizers.Tokenizer, **special: Any) -> Any:
    transformers = pytest.importorskip("transformers", reason="Hugging Face tokenizers need transformers")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **{"eos_token": "</s>", **special})


FAMILIES: dict[str, Callable[[], Any]] = {
    "byte-level without begin token": lambda: hugging_face(byte_level()),
    "byte-level with begin token": lambda: hugging_face(byte_level(), bos_token="<s>"),
    "byte-level that composes accents": lambda: hugging_face(byte_level(normalizers.NFC()), bos_token="<s>"),
    "SentencePiece by normalizer": lambda: hugging_face(
        sentence_piece("normalizer"), bos_token="<s>", unk_token="<unk>"
    ),
    "SentencePiece by Metaspace, first": lambda: hugging_face(sentence_piece("first"), bos_token="<s>"),
    "SentencePiece by Metaspace, always": lambda: hugging_face(sentence_piece("always"), bos_token="<s>"),
}
every_family = pytest.mark.parametrize("family", FAMILIES)


@every_family
def test_hugging_face_tokenizer_in_a_folder_is_lossless(family: str, tmp_path: Path) -> None:
    FAMILIES[family]().save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.name == str(tmp_path)
    # SentencePiece writes a space with a character of its own, which it takes for a space in text as well
    assert_keeps_everything(tokenizer, but="\u2581" if "SentencePiece" in family else None)
    assert_spans_decode_to_phrases(tokenizer)


@every_family
def test_tokenizer_object_and_its_folder_are_the_same_tokenizer(family: str, tmp_path: Path) -> None:
    made = FAMILIES[family]()
    made.save_pretrained(tmp_path)
    assert load_tokenizer(made) == load_tokenizer(str(tmp_path))
    assert load_tokenizer(made) != load_tokenizer()


@every_family
def test_overcooked_can_use_the_tokenizer_of_a_hugging_face_model(
    family: str, tmp_path: Path, tomato_plan: tuple[str, ...]
) -> None:
    FAMILIES[family]().save_pretrained(tmp_path)
    env = gym.make("Overcooked-tomato-salad-v0", tokenizer=str(tmp_path))
    observation, info = env.reset()
    for phrase in tomato_plan:
        assert env.observation_space.decode(observation) == info["text"]
        assert observation in env.observation_space
        observation, _, terminated, _, info = env.step(env.action_space.encode(phrase))
        assert info["action_valid"] is True
    assert terminated
    assert pickle.loads(pickle.dumps(env)).observation_space == env.observation_space


def test_prompt_starts_with_the_begin_token_where_there_is_one() -> None:
    with_begin = load_tokenizer(hugging_face(byte_level(), bos_token="<s>"))
    ids = with_begin.encode("Make a salad.")
    assert with_begin.prompt(ids) == (with_begin.begin_id, *ids)
    without = load_tokenizer(hugging_face(byte_level()))
    assert without.begin_id is None
    assert without.prompt(ids) == ids


def test_end_token_pads_where_there_is_no_padding_token() -> None:
    plain = load_tokenizer(hugging_face(byte_level()))
    assert plain.pad_id == plain.end_id
    padded = load_tokenizer(hugging_face(byte_level(special=("<s>", "</s>", "<pad>")), pad_token="<pad>"))
    assert padded.pad_id == 2


def test_padding_and_truncation_of_the_original_are_ignored() -> None:
    backend = byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    assert_keeps_everything(load_tokenizer(hugging_face(backend)))


def test_chat_template_goes_around_the_observation() -> None:
    special = ("<s>", "</s>", "<|user|>", "<|assistant|>")
    chat = hugging_face(byte_level(special=special), bos_token="<s>", extra_special_tokens=list(special[2:]))
    chat.chat_template = (
        "{{ bos_token }}{% for message in messages %}<|user|>\n{{ message['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    )
    tokenizer = load_tokenizer(chat)
    text = "Make a salad. <|assistant|>"
    ids = tokenizer.prompt(tokenizer.encode(text))
    user, assistant = (chat.convert_tokens_to_ids(token) for token in special[2:])
    assert ids[:2] == (tokenizer.begin_id, user), "one begin token, not two"
    assert ids.count(tokenizer.begin_id) == 1
    assert ids.count(assistant) == 1, "text of the environment is never encoded as a special token"
    assert tokenizer.decode(ids) == f"<s><|user|>\n{text}\n<|assistant|>\n"
    assert_keeps_everything(tokenizer)
    assert tokenizer != load_tokenizer(hugging_face(byte_level(special=special), bos_token="<s>"))


def test_template_without_the_observation_is_rejected() -> None:
    chat = hugging_face(byte_level(), bos_token="<s>")
    chat.chat_template = "{{ bos_token }}hello"
    with pytest.raises(ValueError, match="does not contain the user's message"):
        load_tokenizer(chat)


@pytest.mark.parametrize(
    "normalizer",
    [normalizers.Lowercase(), normalizers.StripAccents(), normalizers.NFKD(), normalizers.Strip()],
    ids=repr,
)
def test_tokenizer_that_loses_characters_is_rejected(normalizer: Any, tmp_path: Path) -> None:
    lossy = hugging_face(byte_level(normalizers.Sequence([normalizers.NFD(), normalizer])))
    lossy.save_pretrained(tmp_path)
    for source in (lossy, tmp_path):
        with pytest.raises(ValueError, match="does not give every text back unchanged"):
            load_tokenizer(source)


def test_tokenizer_without_an_end_token_is_rejected() -> None:
    with pytest.raises(ValueError, match="no end-of-sequence token"):
        load_tokenizer(hugging_face(byte_level(), eos_token=None))


def test_object_that_is_not_a_tokenizer_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"object.*no fast backend"):
        load_tokenizer(object())
    with pytest.raises(ValueError, match="no fast backend"):
        TokenEnv(gym.make("Overcooked-tomato-salad-v0", interface="text"), tokenizer=3)


def test_copies_and_pickles_never_encode_text_as_special_tokens() -> None:
    tokenizer = load_tokenizer("embedded")
    text = "hello <|end|> <|pad|> x"
    for twin in (copy.deepcopy(tokenizer), pickle.loads(pickle.dumps(tokenizer))):
        assert twin == tokenizer
        assert twin.encode(text) == tokenizer.encode(text)
