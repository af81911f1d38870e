"""Architectures that call themselves linear take twice the memory for twice the lengths, as a whole model."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch
import toy
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from memory import peak_memory
from torch.utils._python_dispatch import TorchDispatchMode

from amlp_fairseq.compat.registration import is_ours
from amlp_fairseq.models.cmlmc import CMLMCConfig
from amlp_fairseq.tasks.translation_cmlmc import TranslationCMLMCConfig, TranslationCMLMCTask

LINEAR = sorted(name for name, model in ARCH_MODEL_REGISTRY.items() if is_ours(model) and "linear" in name)
LENGTH, WORDS = 512, 12


class LargestTensor(TorchDispatchMode):
    """The most numbers that an operator has returned, or has had as scores: fused attention keeps none of these."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        outputs = result if isinstance(result, (tuple, list)) else [result]
        sizes = [each.numel() for each in outputs if isinstance(each, torch.Tensor)]
        if "scaled_dot_product" in func.__name__ and "backward" not in func.__name__:
            q, k = args[:2]
            sizes.append(q.shape[:-1].numel() * k.size(-2))
        self.numbers = max([self.numbers, *sizes])
        return result


def model(arch: str) -> Any:
    dictionary = toy.dictionary(WORDS)
    cfg = Namespace(**toy.SIZES, max_source_positions=4 * LENGTH, max_target_positions=4 * LENGTH, label_smoothing=0.1)
    ARCH_CONFIG_REGISTRY[arch](cfg)
    torch.manual_seed(0)
    task = TranslationCMLMCTask(TranslationCMLMCConfig(), dictionary, dictionary)
    return ARCH_MODEL_REGISTRY[arch].build_model(CMLMCConfig.from_namespace(cfg), task)


def train(network: Any, length: int) -> None:
    """Forward and backward of one sentence, with the pass that corrects."""
    words = torch.randint(4, 4 + WORDS, (1, length), generator=torch.Generator().manual_seed(1))
    masked = torch.where(torch.arange(length) % 2 == 0, words, torch.tensor(3))
    out = network(words, torch.tensor([length]), masked, words)
    sum(part["out"].square().sum() for part in out.values()).backward()


def largest(network: Any, length: int) -> int:
    with LargestTensor() as mode:
        train(network, length)
    return mode.numbers


def test_there_are_some() -> None:
    assert LINEAR == ["cmlmc_abc_linear_wmt_en_de", "cmlmc_amlp_linear_wmt_en_de"]


@pytest.mark.parametrize("arch", LINEAR)
def test_twice_the_length_takes_at_most_twice_the_memory(arch: str) -> None:
    """Memory is a + b·n, so that its ratio is below 2; with n² in it, it would go to 4."""
    network = model(arch)
    assert largest(network, 2 * LENGTH) <= 2 * largest(network, LENGTH)
    network.zero_grad()
    one, two = (peak_memory(lambda length=length: train(network, length)) for length in (LENGTH, 2 * LENGTH))
    assert two <= 2 * one


def test_softmax_in_encoder_and_repos_would_be_seen() -> None:
    network = model("cmlmc_amlp_wmt_en_de")
    assert largest(network, 2 * LENGTH) > 3 * largest(network, LENGTH)
