"""Losses, gradients and parameters stay finite, and label smoothing leaves padding out."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import commands
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fairseq import checkpoint_utils
from small_systems import SYSTEMS, TINY, System
from torch import Tensor

from amlp_fairseq.data.interleaved_pair_dataset import InterleavedPairDataset
from amlp_fairseq.data.start_symbol_pair_dataset import StartSymbolPairDataset

#: Bounded trainings, one of each kind of decoder and attention; the long ones are all.
BF16, FP16 = ("ibdecoder", "aan", "dynamicconv", "cmlmc_amlp_cov"), ("transformer_abc", "cmlm")
TRAININGS = [
    *(pytest.param(row, "bf16", 20, id=f"{row}-bf16-bounded") for row in BF16),
    *(pytest.param(row, "fp16", 20, id=f"{row}-fp16-bounded") for row in FP16),
    *(
        pytest.param(row, dtype, 2000, id=f"{row}-{dtype}-long", marks=pytest.mark.long)
        for row in SYSTEMS
        for dtype in ("bf16", "fp16")
    ),
]


@pytest.mark.parametrize(("row", "dtype", "updates"), TRAININGS)
def test_trainings_in_half_precision(row: str, dtype: str, updates: int, data: Path, tmp_path: Path) -> None:
    """All that is logged and saved; fp16 runs on a CPU, too, and never has to scale its losses down."""
    log = ["--log-format", "json", "--log-interval", "1", "--max-update", updates, f"--{dtype}"]
    words = [data, "--corpus", "embedded", "--row", row, "--scale", "embedded", *TINY, *log, "--save-dir", tmp_path]
    printed = commands.run("amlp_fairseq.training.train", *words).splitlines()
    lines = [json.loads(found[1]) for line in printed if (found := re.search(r"\btrain_inner\b\W*?({.*})", line))]
    assert [int(line["num_updates"]) for line in lines] == list(range(1, updates + 1))
    numbers = [float(line[name]) for line in lines for name in line if name not in ("epoch", "update", "wall")]
    assert {"loss", "gnorm"} <= lines[0].keys()
    assert all(map(math.isfinite, numbers))
    assert not any("overflow" in line for line in printed)
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=False)
    moments = [
        each[name] for each in state["last_optimizer_state"]["state"].values() for name in ("exp_avg", "exp_avg_sq")
    ]
    assert len(moments) > 0
    assert all(bool(value.isfinite().all()) for value in [*state["model"].values(), *moments])
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    assert all(torch.equal(value.to(half).to(value.dtype), value) for value in state["model"].values())


class Learning:
    """A system as its training sees it: its model, its criterion, and batches of any sentences."""

    def __init__(self, system: System) -> None:
        (self.model,), cfg, self.task = checkpoint_utils.load_model_ensemble_and_task([str(system.checkpoint)])
        self.criterion = self.task.build_criterion(cfg.criterion)
        self.task.load_dataset("test")
        self.dataset = self.task.dataset("test")
        self.refines = isinstance(self.dataset, StartSymbolPairDataset)
        self.words_per_step = self.task.order.words_per_step if isinstance(self.dataset, InterleavedPairDataset) else 1

    def batch(self, lengths: list[tuple[int, int]]) -> dict[str, Any]:
        """Random pairs of (source, target) words."""
        d, rng = self.task.target_dictionary, torch.Generator().manual_seed(1)

        def words(count: int) -> Tensor:
            return torch.cat([torch.randint(4, len(d), (count,), generator=rng), torch.tensor([d.eos()])])

        start = torch.tensor([d.bos()] if self.refines else [], dtype=torch.long)
        pairs = [{"source": torch.cat([start, words(source)]), "target": words(target)} for source, target in lengths]
        return self.dataset.collater([{"id": i, **pair} for i, pair in enumerate(pairs)])

    def padded(self, sample: dict[str, Any], columns: int, rows: int) -> dict[str, Any]:
        """The batch with steps of padding behind the targets and before the sources, and with rows that repeat the
        first source and have nothing but padding to write."""
        pad, steps, inputs = self.task.target_dictionary.pad(), columns * self.words_per_step, dict(sample["net_input"])
        sources, lengths = inputs["src_tokens"], inputs["src_lengths"]
        inputs["src_tokens"] = F.pad(torch.cat([sources, sources[:1].expand(rows, -1)]), (columns, 0), value=pad)
        inputs["src_lengths"] = torch.cat([lengths, lengths[:1].expand(rows)])
        result = {**sample, "net_input": inputs}
        for part in (result, inputs):
            for name in ("prev_output_tokens", "prev_target", "target", "target_interleaved"):
                if name in part:
                    part[name] = F.pad(part[name], (0, steps, 0, rows), value=pad)
        return result

    def loss(self, sample: dict[str, Any]) -> tuple[float, dict[str, Tensor]]:
        """The criterion's loss and its gradients."""
        self.model.zero_grad()
        loss, *_ = self.criterion(self.model, sample)
        loss.backward()
        return loss.item(), gradients(self.model)


def gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


@pytest.mark.parametrize("row", SYSTEMS)
@pytest.mark.parametrize("longest", [100, pytest.param(2000, marks=pytest.mark.long)], ids=["bounded", "long"])
def test_gradients_of_extreme_batches(row: str, longest: int, system: Callable[[str], System]) -> None:
    """Sources and targets without words, of one word, of very many; rows that have nothing to write."""
    learning = Learning(system(row))
    optimizer = SimpleNamespace(backward=lambda loss: loss.backward())
    batches = {
        "no words": learning.batch([(0, 0), (3, 0), (0, 3)]),
        "one word": learning.batch([(1, 1)]),
        "one word among many": learning.batch([(20, 1), (1, 20), (1, 1)]),
        "the longest": learning.batch([(longest, longest), (1, 1)]),
        "padding": learning.padded(learning.batch([(5, 7), (9, 1)]), columns=10, rows=2),
    }
    for dtype in (torch.float32, torch.bfloat16):
        model = learning.model.to(dtype)
        for name, batch in batches.items():
            model.zero_grad()
            torch.manual_seed(1)
            loss, *_ = learning.task.train_step(dict(batch), model, learning.criterion, optimizer, 100_000)
            assert loss.isfinite(), (name, dtype)
            found = gradients(model)
            assert any(gradient.any() for gradient in found.values()), (name, dtype)
            assert [each for each, gradient in found.items() if not gradient.isfinite().all()] == [], (name, dtype)


def log_softmax(logits: Tensor) -> Any:
    values = logits.detach().numpy().astype(np.float64)
    return values - np.logaddexp.reduce(values, axis=-1, keepdims=True)


def smoothed(lprobs: Any, targets: Any, epsilon: float = 0.1) -> float:
    """The sum of -log q for words (n, V), where the truth is 1 - ε for the target and shares ε among the others."""
    others = epsilon / (lprobs.shape[1] - 1)
    truth = np.full_like(lprobs, others)
    truth[np.arange(len(targets)), targets] = 1 - epsilon
    return float(-(truth * lprobs).sum())


def test_the_oracle_by_hand() -> None:
    """Bits: of the target 1, of the others 2, 3 and 3."""
    lprobs = np.log(np.array([[1 / 2, 1 / 4, 1 / 8, 1 / 8]]))
    assert smoothed(lprobs, [0]) == pytest.approx((0.9 * 1 + 0.1 / 3 * (2 + 3 + 3)) * math.log(2))


@pytest.mark.parametrize("row", SYSTEMS)
def test_label_smoothing_leaves_padding_out(row: str, system: Callable[[str], System]) -> None:
    """The loss is a float64 oracle's, over words and ends alone; padding changes neither it nor its gradients."""
    learning = Learning(system(row))
    model, d = learning.model.double().eval(), learning.task.target_dictionary
    sample = learning.batch([(9, 1), (5, 7), (2, 4)])
    if learning.refines:
        model.correction_starts = -1  # chance decides about guesses
        torch.manual_seed(1)
        sample = learning.task._with_start(sample)
        sample["prev_target"] = learning.task.inject_noise(sample["target"])
        inputs = sample["net_input"]
        outputs = model(inputs["src_tokens"], inputs["src_lengths"], sample["prev_target"], sample["target"])
        masked = sample["prev_target"] == d.unk()
        assert 3 <= masked.sum() < 12
        targets = sample["target"][masked].numpy()
        lprobs = log_softmax(outputs["word_ins"]["out"][masked])
        lengths = log_softmax(outputs["length"]["out"])
        # fairseq shares ε among all words, the target included, and divides by the number of words.
        expected = -0.9 * lprobs[np.arange(len(targets)), targets].mean() - 0.1 * lprobs.mean()
        expected -= 0.1 * lengths[np.arange(3), [3, 9, 6]].mean()
        rows = 0  # each would count for the length
    else:
        targets = sample.get("target_interleaved", sample["target"])
        words = targets != d.pad()
        assert words.sum() == 15
        expected = smoothed(log_softmax(model(**sample["net_input"])[0][words]), targets[words].numpy())
        rows = 2
    loss, wanted = learning.loss(sample)
    assert loss == pytest.approx(expected, rel=1e-6)
    padded_loss, found = learning.loss(learning.padded(sample, columns=10, rows=rows))
    assert padded_loss == pytest.approx(loss, rel=1e-6)
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-5, atol=1e-6, msg=name)
