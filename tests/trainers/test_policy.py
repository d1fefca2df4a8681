"""Scores of a policy, compared with a naive reference: one unpadded row of the model for each candidate."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft.tuners import lora
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM, OPTConfig, OPTForCausalLM

from lang_envs import load_tokenizer
from trainers import language_model
from trainers.adapters import AdaptedLinear
from trainers.language_model import LanguageModel, load_language_model
from trainers.policy import LanguagePolicy
from trainers.prefix_tree import PackedBatch, Query, build_tree, pack

PHRASES = ("get the tomato", "get the bowl", "go to the cutting board", "deliver the dish", "chop", "chop the bowl")
OTHER_PHRASES = ("get the onion", "chop")
TEXTS = (
    "Make a tomato salad. You stand at a counter. Your hands are empty.",
    "You carry a bowl.",
    "Make a tomato salad. You stand at the delivery counter. You carry an empty bowl. On a counter is a raw tomato.",
)


def load(kind: str, tiny_model: Callable[[str], Path], **options: object) -> LanguageModel:
    targets = ("in_proj", "x_proj") if kind == "mamba" else ("q_proj", "v_proj")
    source = "embedded" if kind == "embedded" else str(tiny_model(kind))
    torch.manual_seed(0)
    model = load_language_model(source, lora_targets=targets, device="cpu", **options)
    for name, parameter in model.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)  # a new adapter has no effect
    return model


def make_policy(model: LanguageModel, sampling: str = "trie", normalisation: str = "token") -> LanguagePolicy:
    return LanguagePolicy(model, sampling=sampling, normalisation=normalisation)


def make_queries(model: LanguageModel) -> list[Query]:
    tokenizer = model.tokenizer
    return [
        Query(
            tokenizer.prompt(tokenizer.encode(text)),
            build_tree(tuple(tokenizer.encode_action(phrase) for phrase in phrases)),
        )
        for text, phrases in zip(TEXTS, (PHRASES, OTHER_PHRASES, PHRASES[:3]), strict=True)
    ]


def reference_logits(model: LanguageModel, prompt: tuple[int, ...], candidate: tuple[int, ...]) -> torch.Tensor:
    """Return the logits before each token of a candidate, from one unpadded row: (n, vocabulary)."""
    logits = model.model(input_ids=torch.tensor([[*prompt, *candidate]])).logits[0].float()
    logits = logits[:, : model.tokenizer.vocab_size]
    return logits[len(prompt) - 1 : len(prompt) + len(candidate) - 1]


def reference_trie_log_probs(
    logits: torch.Tensor, candidate: tuple[int, ...], candidates: tuple[tuple[int, ...], ...]
) -> torch.Tensor:
    """Return the log-probability of each token among the tokens with which some candidate continues its prefix."""
    log_probs = []
    for position, token in enumerate(candidate):
        prefix = candidate[:position]
        allowed = sorted({other[position] for other in candidates if other[:position] == prefix})
        log_probs.append(logits[position, allowed].log_softmax(-1)[allowed.index(token)])
    return torch.stack(log_probs)


@pytest.mark.parametrize("kind", ["embedded", "llama", "qwen2", "mamba"])
@pytest.mark.parametrize("sampling", ["trie", "candidates"])
def test_token_log_probs_equal_those_of_single_unpadded_rows(
    kind: str, sampling: str, tiny_model: Callable[[str], Path]
) -> None:
    model = load(kind, tiny_model)
    policy = make_policy(model, sampling)
    queries = make_queries(model)
    scores = policy.score(model.pack(queries))
    for b, (prompt, tree) in enumerate(queries):
        for k, candidate in enumerate(tree.candidates):
            logits = reference_logits(model, prompt, candidate)
            if sampling == "trie":
                expected = reference_trie_log_probs(logits, candidate, tree.candidates)
            else:
                expected = logits.log_softmax(-1)[torch.arange(len(candidate)), torch.tensor(candidate)]
            torch.testing.assert_close(scores.token_log_probs[b, k, : len(candidate)], expected, atol=1e-5, rtol=1e-5)
            assert not scores.token_log_probs[b, k, len(candidate) :].any()


@pytest.mark.parametrize("kind", ["embedded", "llama", "qwen2"])
def test_packed_scores_and_gradients_equal_unpacked_ones(kind: str, tiny_model: Callable[[str], Path]) -> None:
    model = load(kind, tiny_model)
    assert model.packs
    policy = make_policy(model)
    results = []
    for packs in (True, False):
        model.packs = packs
        scores = policy.score(model.pack(make_queries(model)))
        features = model.features(make_queries(model))
        gradients = torch.autograd.grad(scores.token_log_probs.square().sum(), model.trainable_parameters())
        results.append((scores, features, gradients))
    (packed, packed_features, packed_gradients), (naive, naive_features, naive_gradients) = results
    torch.testing.assert_close(packed.token_log_probs, naive.token_log_probs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(packed.action_log_probs, naive.action_log_probs, atol=1e-5, rtol=1e-5)
    for ours, theirs in zip(packed_features, naive_features, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    scale = max(float(gradient.abs().max()) for gradient in naive_gradients)
    for ours, theirs in zip(packed_gradients, naive_gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5 * scale, rtol=1e-4)


def wide_query(model: LanguageModel, count: int, prompt: int, seed: int = 0) -> Query:
    """Return a prompt of random tokens with ``count`` candidates of random length, many of which share a prefix."""
    rng = np.random.default_rng(seed)
    candidates: set[tuple[int, ...]] = set()
    while len(candidates) < count:
        candidates.add((*rng.integers(5, 5 + 30, rng.integers(1, 6)).tolist(), model.tokenizer.end_id))
    ids = rng.integers(5, model.tokenizer.vocab_size, prompt)
    return Query(tuple(ids.tolist()), build_tree(tuple(sorted(candidates, key=hash))))


@pytest.mark.parametrize("kind", ["embedded", "llama"])  # one key head for one query head, and for two
@pytest.mark.parametrize("sampling", ["trie", "candidates"])
@pytest.mark.parametrize(("count", "length"), [(300, 20), (6, 400)])
def test_packed_scores_of_wide_trees_and_long_prompts_equal_unpacked_ones(
    kind: str, sampling: str, count: int, length: int, tiny_model: Callable[[str], Path]
) -> None:
    model = load(kind, tiny_model)
    policy = make_policy(model, sampling)
    prompt, tree = wide_query(model, count, length)
    batch = [Query(prompt, tree), Query(prompt, make_queries(model)[1].tree)]  # one prompt with two trees
    assert len(tree.parts) > 2 or count == 6
    weights = None
    results = []
    for packs in (True, False):
        model.packs = packs
        scores = policy.score(model.pack(batch))
        if weights is None:
            weights = torch.randn(scores.token_log_probs.shape)
        gradients = torch.autograd.grad((scores.token_log_probs * weights).sum(), model.trainable_parameters())
        results.append((scores, gradients))
    (packed, packed_gradients), (naive, naive_gradients) = results
    torch.testing.assert_close(packed.token_log_probs, naive.token_log_probs, atol=1e-5, rtol=1e-5)
    for ours, theirs in zip(packed_gradients, naive_gradients, strict=True):
        assert (ours - theirs).norm() <= 1e-4 * theirs.norm()


def test_cost_of_a_tree_is_linear_in_its_candidates(tiny_model: Callable[[str], Path]) -> None:
    model = load("llama", tiny_model)
    sizes = {}
    for count in (200, 2000):
        batch = model.pack([wide_query(model, count, 50)])
        sizes[count] = np.array([len(batch.input_ids), batch.visible.size])
    assert (sizes[2000] < 11 * sizes[200]).all(), "numbers of tokens and of mask entries"


@pytest.mark.parametrize("kind", ["llama", "mamba"])
def test_unpacked_scoring_respects_tokens_per_forward(kind: str, tiny_model: Callable[[str], Path]) -> None:
    model = load(kind, tiny_model)
    model.packs = False
    policy = make_policy(model)
    batch = model.pack([wide_query(model, 30, 60), *make_queries(model)])
    whole = policy.score(batch)
    gradients = torch.autograd.grad(whole.token_log_probs.sum(), model.trainable_parameters())
    model.tokens_per_forward = 300
    sizes = []
    hook = lambda module, args, options: sizes.append(options["input_ids"].numel())  # noqa: E731
    with model.model.get_base_model().get_decoder().register_forward_pre_hook(hook, with_kwargs=True):
        chunked = policy.score(batch)
        chunked_gradients = torch.autograd.grad(chunked.token_log_probs.sum(), model.trainable_parameters())
    assert 200 < max(sizes) <= 300
    torch.testing.assert_close(chunked.token_log_probs, whole.token_log_probs, atol=1e-4, rtol=1e-4)
    for ours, theirs in zip(chunked_gradients, gradients, strict=True):
        assert (ours - theirs).norm() <= 1e-3 * theirs.norm() + 1e-5


def test_peak_memory_without_packing_is_that_of_one_chunk() -> None:
    script = """
import sys, torch, numpy as np
from trainers.language_model import load_language_model
from trainers.policy import LanguagePolicy
from trainers.prefix_tree import Query, build_tree
torch.set_num_threads(1)
model = load_language_model("embedded", device="cpu", tokens_per_forward=16)
model.packs = False
policy = LanguagePolicy(model, sampling="trie", normalisation="token")
tree = build_tree(tuple((i, i + 1, 2) for i in range(10, 138)))
peak = lambda: int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1])
policy.score(model.pack([Query(tuple(range(5, 25)), build_tree(((5, 6, 2), (7, 2))))])).token_log_probs.sum().backward()
before = peak()  # includes what torch imports for checkpointing
model.tokens_per_forward = int(sys.argv[1])
policy.score(model.pack([Query(tuple(range(5, 135)), tree)])).token_log_probs.sum().backward()
print(peak() - before)
"""
    environ = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}  # glibc returns freed memory to the system
    kib = [
        int(
            subprocess.run(
                [sys.executable, "-c", script, tokens], check=True, capture_output=True, text=True, env=environ
            ).stdout
        )
        for tokens in ("512", "32768")
    ]
    assert kib[0] < kib[1] / 10, f"KiB above the start: {kib}"


def llama_with_realistic_logits(hidden: int, layers: int) -> LlamaForCausalLM:
    """Return a random Llama in bfloat16 whose logits have the standard deviation of a trained model's."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=load_tokenizer("embedded").vocab_size,
        hidden_size=hidden, intermediate_size=hidden * 2, num_hidden_layers=layers, num_attention_heads=hidden // 64,
        initializer_range=2 * hidden**-0.5, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        model.lm_head.weight *= 4.5 / model(torch.arange(5, 65)[None]).logits.float().std()
    return model


@pytest.mark.parametrize(("hidden", "layers"), [(512, 8), (1024, 16)])
def test_half_precision_models_with_realistic_logits_are_packed(hidden: int, layers: int) -> None:
    base = llama_with_realistic_logits(hidden, layers)
    model = load_language_model(base, tokenizer="embedded", device="cpu", dtype="bfloat16")
    assert model.packs
    assert model.packing_error < 0.03


@pytest.mark.parametrize("wrong", ["one visible node too many", "positions", "hidden first token of the prompt"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_model_with_wrong_tree_attention_is_not_packed(
    wrong: str, dtype: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong_pack(*args: Any, **options: Any) -> PackedBatch:
        batch = pack(*args, **options)
        if wrong == "positions":
            batch.position_ids[batch.prompts * batch.width :] += 1
        elif wrong == "hidden first token of the prompt":
            batch.visible[:, :, 0] = False
        else:
            batch.visible[:, 1, batch.width] ^= True
        return batch

    base = llama_with_realistic_logits(512, 8) if dtype == "bfloat16" else "embedded"
    monkeypatch.setattr(language_model, "pack", wrong_pack)
    with caplog.at_level(logging.WARNING):
        model = load_language_model(base, tokenizer="embedded", device="cpu", dtype=dtype)
    assert not model.packs
    assert "does not support tree attention" in caplog.text


@pytest.mark.parametrize("sampling", ["trie", "candidates"])
def test_models_with_soft_capping_are_packed_and_scored_correctly(sampling: str) -> None:
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=load_tokenizer("embedded").vocab_size,
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=48, initializer_range=0.5, final_logit_softcapping=3.0, attn_logit_softcapping=2.0,
    )  # fmt: skip
    model = load_language_model(Gemma2ForCausalLM(config), tokenizer="embedded", device="cpu", temperature=0.8)
    assert model.packs
    prompt, tree = wide_query(model, 150, 30)
    scores = make_policy(model, sampling).score(model.pack([Query(prompt, tree)]), with_node_entropies=True)
    for row in (0, 70, 149):
        candidate = tree.candidates[row]
        logits = reference_logits(model, prompt, candidate) / 0.8
        if sampling == "trie":
            expected = reference_trie_log_probs(logits, candidate, tree.candidates)
        else:
            log_probs = logits.log_softmax(-1)
            expected = log_probs[torch.arange(len(candidate)), torch.tensor(candidate)]
            entropy = -(log_probs.exp() * log_probs).sum(-1)
            torch.testing.assert_close(scores.node_entropies[0, row, : len(candidate)], entropy, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(scores.token_log_probs[0, row, : len(candidate)], expected, atol=1e-5, rtol=1e-5)
    (ids,) = model.generate([prompt], max_tokens=5, greedy=True)
    assert tuple(reference_logits(model, prompt, ids).argmax(-1).tolist()) == ids


def test_gradient_checkpointing_does_not_change_gradients(tiny_model: Callable[[str], Path]) -> None:
    gradients = []
    for checkpointing in (False, True):
        model = load("llama", tiny_model, gradient_checkpointing=checkpointing)
        batch = model.pack([*make_queries(model), wide_query(model, 200, 30)])
        scores = make_policy(model).score(batch)
        gradients.append(torch.autograd.grad(scores.token_log_probs.square().sum(), model.trainable_parameters()))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_cudnn_attention_is_disabled_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loaded(Exception):
        pass

    def load_base(name: str, device: torch.device, *_: Any) -> None:
        assert device.type == "cuda"
        raise Loaded

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(language_model, "_load_base", load_base)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        with pytest.raises(Loaded):
            load_language_model("embedded", device="cuda")
        assert not torch.backends.cuda.cudnn_sdp_enabled(), "it compiles a plan for each new shape"
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def test_number_of_keys_is_a_multiple_of_eight_on_a_gpu(tiny_model: Callable[[str], Path]) -> None:
    model = load("llama", tiny_model)
    scores = make_policy(model).score(model.pack(make_queries(model)))
    assert model.pack(make_queries(model)).visible.shape[-1] % 8
    model.device = torch.device("meta")
    batch = model.pack(make_queries(model))
    assert batch.visible.shape[-1] % 8 == 0
    model.device = torch.device("cpu")
    aligned = make_policy(model).score(batch)
    torch.testing.assert_close(aligned.token_log_probs, scores.token_log_probs, atol=1e-5, rtol=1e-5)


def test_functional_dropout_is_disabled() -> None:
    torch.manual_seed(0)
    config = OPTConfig(
        vocab_size=load_tokenizer("embedded").vocab_size,
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48, word_embed_proj_dim=32, dropout=0.3,
    )  # fmt: skip
    model = load_language_model(OPTForCausalLM(config), tokenizer="embedded", device="cpu", gradient_checkpointing=True)
    assert model.packs
    policy = make_policy(model)
    log_probs = [policy.score(model.pack([wide_query(model, 20, 10)])).token_log_probs for _ in range(2)]
    assert torch.equal(*log_probs)


def test_8bit_model_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("bitsandbytes")
    with caplog.at_level(logging.WARNING):
        load_language_model("embedded", device="cpu", quantize="8bit")
    assert "quantize='4bit'" in caplog.text


@pytest.mark.parametrize("kind", ["embedded", "qwen2"])  # without and with biases
def test_adapted_layers_of_models_equal_pefts_layers(kind: str, tiny_model: Callable[[str], Path]) -> None:
    model = load(kind, tiny_model)
    layers = [layer for layer in model.model.modules() if isinstance(layer, lora.Linear)]
    assert layers and all(type(layer) is AdaptedLinear for layer in layers)
    for layer in layers:
        x = torch.randn(2, 5, layer.in_features, requires_grad=True)
        weights = [x, layer.lora_A["default"].weight, layer.lora_B["default"].weight]
        ours, theirs = layer(x), lora.Linear.forward(layer, x)
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
        for own, other in zip(*(torch.autograd.grad(out.sin().sum(), weights) for out in (ours, theirs)), strict=True):
            torch.testing.assert_close(own, other, atol=1e-4, rtol=1e-4)


def test_features_equal_hidden_states_without_the_adapter(tiny_model: Callable[[str], Path]) -> None:
    model = load("llama", tiny_model)
    queries = make_queries(model)
    features = model.features(queries)
    prompt, tree = queries[0]
    with model.model.disable_adapter():
        decoder = model.model.get_base_model().model
        for k, candidate in enumerate(tree.candidates):
            hidden = decoder(input_ids=torch.tensor([[*prompt, *candidate]])).last_hidden_state[0]
            nodes = tree.path_nodes[k, : len(candidate)]
            expected = hidden[len(prompt) - 1 : len(prompt) + len(candidate) - 1]
            torch.testing.assert_close(features[0][nodes], expected, atol=1e-5, rtol=1e-5)
        base = model.logits(model.pack(queries))
        model.features(queries)
        assert torch.equal(model.logits(model.pack(queries)), base), "features() must not enable a disabled adapter"
    assert not torch.allclose(model.logits(model.pack(queries)), base), "the adapter is enabled again"


def test_trie_probabilities_of_all_candidates_sum_to_one(tiny_model: Callable[[str], Path]) -> None:
    model = load("llama", tiny_model)
    policy = make_policy(model, "trie")
    scores = policy.score(model.pack(make_queries(model)))
    torch.testing.assert_close(scores.action_log_probs.exp().sum(-1), torch.ones(3))
    torch.testing.assert_close(scores.action_log_probs[1, :2], scores.token_log_probs[1, :2].sum(-1))
    assert torch.isneginf(scores.action_log_probs[1, 2:]).all()


@pytest.mark.parametrize(
    ("normalisation", "lengths"),
    [("token", (3, 3, 5, 3, 1, 3)), ("word", (3, 3, 5, 3, 1, 3)), ("none", (1,) * 6)],
)
def test_candidate_probabilities_are_a_softmax_of_normalised_log_likelihoods(
    normalisation: str, lengths: tuple[int, ...], tiny_model: Callable[[str], Path]
) -> None:
    model = load("llama", tiny_model)
    policy = make_policy(model, "candidates", normalisation)
    prompt, tree = make_queries(model)[0]
    scores = policy.score(model.pack([Query(prompt, tree)]))
    likelihoods = torch.stack(
        [
            reference_logits(model, prompt, candidate)
            .log_softmax(-1)[torch.arange(len(candidate)), torch.tensor(candidate)]
            .sum()
            for candidate in tree.candidates
        ]
    )
    expected = (likelihoods / torch.tensor(lengths)).log_softmax(-1)
    torch.testing.assert_close(scores.action_log_probs[0], expected, atol=1e-5, rtol=1e-5)


def test_word_and_token_normalisation_differ_for_words_of_several_tokens(tiny_model: Callable[[str], Path]) -> None:
    model = load("llama", tiny_model)
    candidate = model.tokenizer.encode_action("get xylophones")
    assert make_policy(model, "candidates", "word").divisor(candidate) == 2
    assert make_policy(model, "candidates", "token").divisor(candidate) == len(candidate) - 1 > 2


def test_entropies_equal_those_of_enumerated_distributions(tiny_model: Callable[[str], Path]) -> None:
    model = load("llama", tiny_model)
    policy = make_policy(model, "trie")
    queries = make_queries(model)
    scores = policy.score(model.pack(queries), with_node_entropies=True)
    for b, (prompt, tree) in enumerate(queries):
        probabilities = scores.action_log_probs[b, : len(tree.candidates)].exp()
        expected = -(probabilities * probabilities.log()).sum()
        torch.testing.assert_close(scores.action_entropy[b], expected)
        first = reference_logits(model, prompt, tree.candidates[0])[0]
        allowed = sorted({candidate[0] for candidate in tree.candidates})
        distribution = first[allowed].softmax(-1)
        at_root = -(distribution * distribution.log()).sum()
        torch.testing.assert_close(scores.node_entropies[b, 0, 0], at_root, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_free_text_scores_equal_sampling_log_probs(tiny_model: Callable[[str], Path], temperature: float) -> None:
    model = load("llama", tiny_model)
    model.temperature = temperature
    policy = make_policy(model, "free")
    prompts = [prompt for prompt, _ in make_queries(model)]
    torch.manual_seed(1)
    texts = model.generate(prompts, max_tokens=12, greedy=False)
    assert all(1 <= len(ids) <= 12 for ids in texts)
    batch = model.pack([Query(prompt, build_tree((ids,))) for prompt, ids in zip(prompts, texts, strict=True)])
    scores = policy.score(batch, with_node_entropies=True)
    for b, (prompt, ids) in enumerate(zip(prompts, texts, strict=True)):
        logits = (reference_logits(model, prompt, ids) / temperature).log_softmax(-1)
        expected = logits[torch.arange(len(ids)), torch.tensor(ids)]
        torch.testing.assert_close(scores.token_log_probs[b, 0, : len(ids)], expected, atol=1e-5, rtol=1e-5)
        entropy = -(logits.exp() * logits).sum()
        torch.testing.assert_close(scores.action_entropy[b], entropy, atol=1e-4, rtol=1e-5)


def test_greedy_free_text_takes_the_most_probable_token_each_time(tiny_model: Callable[[str], Path]) -> None:
    model = load("qwen2", tiny_model)
    prompts = [prompt for prompt, _ in make_queries(model)]
    for prompt, ids in zip(prompts, model.generate(prompts, max_tokens=6, greedy=True), strict=True):
        assert tuple(reference_logits(model, prompt, ids).argmax(-1).tolist()) == ids


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_free_text_is_sampled_from_the_model_and_stops_at_the_end_token(
    tiny_model: Callable[[str], Path], temperature: float
) -> None:
    model = load("llama", tiny_model)
    model.temperature = temperature
    prompt = make_queries(model)[1][0]
    torch.manual_seed(5)
    first = [ids[0] for ids in model.generate([prompt] * 4000, max_tokens=1, greedy=False)]
    expected = (reference_logits(model, prompt, (0,))[0] / temperature).softmax(-1)
    observed = torch.bincount(torch.tensor(first), minlength=len(expected)) / len(first)
    likely = expected > 0.02
    assert likely.sum() >= 2
    torch.testing.assert_close(observed[likely], expected[likely], atol=0.03, rtol=0)
    end = model.tokenizer.end_id
    for ids in model.generate([prompt] * 200, max_tokens=30, greedy=False):
        assert end not in ids[:-1]


def test_generation_settings_of_a_model_are_ignored(tiny_model: Callable[[str], Path]) -> None:
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(tiny_model("llama"), dtype=torch.float32)
    base.generation_config.repetition_penalty = 50.0
    base.generation_config.min_p = 0.9
    model = load_language_model(base, tokenizer=str(tiny_model("llama")), device="cpu")
    prompt = make_queries(model)[0][0]
    torch.manual_seed(5)
    first = [ids[0] for ids in model.generate([prompt] * 4000, max_tokens=1, greedy=False)]
    expected = reference_logits(model, prompt, (0,))[0].softmax(-1)
    repeated = torch.tensor([token in prompt for token in range(len(expected))])
    share = repeated[torch.tensor(first)].float().mean()
    torch.testing.assert_close(share, expected[repeated].sum(), atol=0.03, rtol=0)


def test_prompts_longer_than_a_sliding_window_are_scored_correctly(
    tiny_model: Callable[[str], Path],
) -> None:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=load_tokenizer("embedded").vocab_size,
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, sliding_window=24, initializer_range=0.3,
    )  # fmt: skip
    model = load_language_model(MistralForCausalLM(config), tokenizer=str(tiny_model("llama")), device="cpu")
    policy = make_policy(model, "candidates")
    tree = build_tree(((5, 6, 2), (7, 2)))
    prompt = tuple(range(10, 90))
    scores = policy.score(model.pack([Query(prompt, tree)]))
    for k, candidate in enumerate(tree.candidates):
        logits = reference_logits(model, prompt, candidate).log_softmax(-1)
        expected = logits[torch.arange(len(candidate)), torch.tensor(candidate)]
        torch.testing.assert_close(scores.token_log_probs[0, k, : len(candidate)], expected, atol=1e-5, rtol=1e-5)


def test_outputs_and_features_do_not_depend_on_grouping(tiny_model: Callable[[str], Path]) -> None:
    model = load("llama", tiny_model)
    policy = make_policy(model)
    together = policy.outputs(make_queries(model))
    features = model.features(make_queries(model))
    model.tokens_per_forward = 1
    for one, other in zip(together, policy.outputs(make_queries(model)), strict=True):
        np.testing.assert_allclose(one.token_log_probs, other.token_log_probs, atol=1e-5)
    for one, other in zip(features, model.features(make_queries(model)), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_model_without_attention_is_unpacked_with_a_warning(
    tiny_model: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        model = load("mamba", tiny_model)
    assert not model.packs
    assert "does not support tree attention" in caplog.text


def test_prompt_of_an_instruct_model_uses_its_chat_template(tiny_model: Callable[[str], Path]) -> None:
    tokenizer = load("qwen2", tiny_model).tokenizer
    prompt = tokenizer.prompt(tokenizer.encode("You carry a bowl."))
    assert tokenizer.decode(prompt) == "<|prefix|>user: You carry a bowl.<|suffix|><|prefix|>assistant:"
    assert prompt[0] == 3, "the markers of the template are encoded as special tokens, not as letters"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu9"}, "tpu9"),
        ({"dtype": "int8"}, "int8"),
        ({"quantize": "2bit"}, "2bit"),
    ],
)
def test_unknown_options_raise_with_their_value(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_language_model("embedded", **{"device": "cpu", **options})


@pytest.mark.parametrize("quantize", ["4bit", "8bit"])
def test_quantised_models_have_similar_scores_and_finite_gradients(
    quantize: str, tiny_model: Callable[[str], Path]
) -> None:
    pytest.importorskip("bitsandbytes")
    model = load("llama", tiny_model, quantize=quantize)
    policy = make_policy(model)
    batch = model.pack(make_queries(model))
    scores = policy.score(batch)
    scores.token_log_probs.sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.trainable_parameters())
    plain = make_policy(load("llama", tiny_model))
    exact = plain.score(plain.language_model.pack(make_queries(model))).token_log_probs
    gap = (scores.token_log_probs - exact).abs().max()
    assert 0 < gap < 8, "quantisation changes the log-probabilities a little"
