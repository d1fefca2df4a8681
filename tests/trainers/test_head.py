"""The head at nodes, compared with logits of the whole vocabulary."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trainers import head as head_module
from trainers.head import edge_logits, float_product, vocabulary_statistics


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("chunk", [1, 200, 1 << 22])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_vocabulary_statistics_equal_those_of_all_logits(
    bias: bool, chunk: int, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_module, "CHUNK", chunk)
    torch.manual_seed(0)
    head = nn.Linear(16, 70, bias=bias).requires_grad_(False)
    head.weight.mul_(20)
    hidden = torch.randn(9, 16, requires_grad=True)
    weights = torch.randn(2, 9)
    log_probs = (head(hidden)[:, :64] / temperature).log_softmax(-1)  # 64 of 70: models pad their vocabulary
    expected = (head(hidden)[:, :64] / temperature).logsumexp(-1), -(log_probs.exp() * log_probs).sum(-1)
    statistics = vocabulary_statistics(head, hidden, 64, temperature, with_entropy=True)
    for own, other in zip(statistics, expected, strict=True):
        torch.testing.assert_close(own, other)
    for row in (0, 1):
        (ours,) = torch.autograd.grad((statistics[row] * weights[row]).sum(), hidden, retain_graph=True)
        (theirs,) = torch.autograd.grad((expected[row] * weights[row]).sum(), hidden, retain_graph=True)
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    log_sum_exp, entropy = vocabulary_statistics(head, hidden.detach(), 64, temperature, with_entropy=False)
    torch.testing.assert_close(log_sum_exp, expected[0])
    assert entropy is None


def test_edge_logits_of_half_precision_models_are_not_rounded() -> None:
    torch.manual_seed(0)
    head = nn.Linear(64, 300, bias=False).to(torch.bfloat16)
    hidden = (torch.randn(5, 64) * 30).to(torch.bfloat16)
    nodes, tokens = torch.tensor([0, 0, 3, 4]), torch.tensor([7, 299, 12, 0])
    logits = edge_logits(head, hidden, nodes, tokens)
    exact = (hidden.double() @ head.weight.double().t())[nodes, tokens]
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.double(), exact, atol=1e-4, rtol=1e-5)
    assert (head(hidden)[nodes, tokens].double() - exact).abs().max() > 1e-2, "the model's own logits are rounded"
    torch.testing.assert_close(float_product(hidden, head.weight)[nodes, tokens], logits, atol=1e-4, rtol=1e-5)
