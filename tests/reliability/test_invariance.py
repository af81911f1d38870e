"""The same seed gives the same result, and a sentence's translation does not depend on the others of its batch."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import commands
import pytest
import torch
import toy
from fairseq import checkpoint_utils, options, tasks
from small_systems import SYSTEMS, TINY, System

#: Systems whose task has ``--decode-dtype``.
INT8 = tuple(row for row in SYSTEMS if row.startswith(("ib", "im", "vanilla", "cmlm")))
Translations = dict[int, list[dict[str, Any]]]


class Decoding:
    """A system that decodes a part of its data in this process, as fairseq-generate does."""

    def __init__(self, system: System, subset: str, *more: str) -> None:
        args = options.parse_args_and_arch(options.get_generation_parser(), [*system.options, *more])
        self.task = tasks.setup_task(args)
        self.models, _ = checkpoint_utils.load_model_ensemble([args.path], task=self.task)
        self.task.load_dataset(subset)
        self.dataset = self.task.dataset(subset)
        for model in self.models:
            distinguish(model)
            model.prepare_for_inference_(SimpleNamespace(generation=args, common=args))
        self.generator = self.task.build_generator(self.models, args)

    def __call__(self, ids: list[int] | None = None, shards: int = 1, **limits: int) -> Translations:
        """Hypotheses by sentence.

        Args:
            ids: sentences that are put into one batch, in this order; None: all, in batches that fairseq makes.
            shards: machines that share the batches.
            limits: ``max_tokens`` and ``max_sentences`` of a batch.
        """
        if ids is not None:
            return self._decode(self._in_order(ids))
        result: Translations = {}
        for shard in range(shards):
            batches = self.task.get_batch_iterator(
                self.dataset,
                num_shards=shards,
                shard_id=shard,
                required_batch_size_multiple=8,  # fairseq-generate's default
                disable_iterator_cache=True,
                **limits,
            )
            for batch in batches.next_epoch_itr(shuffle=False):
                if batch:
                    result |= self._decode(batch)
        return result

    def _in_order(self, ids: list[int]) -> dict[str, Any]:
        batch = self.dataset.collater([self.dataset[i] for i in ids])  # sorts by length
        found = batch["id"].tolist()
        rows = torch.tensor([found.index(i) for i in ids])
        inputs = {name: batch["net_input"][name][rows] for name in ("src_tokens", "src_lengths")}
        return {"id": batch["id"][rows], "net_input": inputs}

    def _decode(self, batch: dict[str, Any]) -> Translations:
        found = self.task.inference_step(self.generator, self.models, batch)
        return dict(zip(batch["id"].tolist(), found, strict=True))


def distinguish(model: Any) -> None:
    """Give a hardly trained model strong opinions: other words for other sources, none nearly as likely as the next."""
    torch.manual_seed(1)
    for name, value in model.named_parameters():
        if value.dim() > 1 and "embed" not in name:
            value.data *= 2
    projection = model.decoder.output_projection
    projection.weight = torch.nn.Parameter(torch.randn_like(projection.weight))


def assert_same(found: Translations, expected: Translations, tolerance: float, others: int = 0) -> None:
    """The same words, but for ``others`` sentences; scores that differ by at most ``tolerance``."""
    assert found.keys() == expected.keys()
    words, right = ({i: [each["tokens"].tolist() for each in h] for i, h in x.items()} for x in (found, expected))
    differ = [number for number in right if words[number] != right[number]]
    assert len(differ) <= others, differ
    for number in expected.keys() - differ:
        for ours, theirs in zip(found[number], expected[number], strict=True):
            for name in ("positional_scores", "score"):
                values = [torch.as_tensor(each[name]) for each in (ours, theirs)]
                torch.testing.assert_close(*values, rtol=1e-6, atol=tolerance)


@pytest.mark.parametrize(
    ("row", "dtype"),
    [
        *(pytest.param(row, "float32", id=f"{row}-float32") for row in SYSTEMS),
        *(pytest.param(row, "int8", id=f"{row}-int8") for row in INT8),
    ],
)
@pytest.mark.parametrize("subset", ["valid", pytest.param("train", marks=pytest.mark.long)], ids=["bounded", "long"])
def test_any_batch_gives_what_each_sentence_gives_alone(
    row: str, dtype: str, subset: str, system: Callable[[str], System]
) -> None:
    more = ["--decode-dtype", dtype] if dtype == "int8" else []
    if subset == "valid" and row.startswith("cmlm"):
        more += ["--iter-decode-max-iter", "2"]
    decoding = Decoding(system(row), subset, *more)
    ids = list(range(len(decoding.dataset)))
    alone = decoding(max_sentences=1)
    assert sorted(alone) == ids
    assert len({round(float(found[0]["score"]), 4) for found in alone.values()}) > len(ids) / 2  # the source matters
    # AMLP's covariances are small differences of large sums. In int8 the last bits of attention with padding may make
    # another of its 8 bit values of an activation, of which there are half as many without VNNI.
    tolerance = {"float32": 5e-5 if row == "cmlmc_amlp_cov" else 1e-5, "int8": 0.1}[dtype]
    others = len(ids) // 50 if toy.VNNI else 1
    close = (tolerance, others if dtype == "int8" else 0)
    mixed = decoding(random.Random(1).sample(ids, len(ids)))
    assert_same(mixed, alone, *close)
    assert_same(decoding(random.Random(2).sample(ids, len(ids))), mixed, 0.0)  # other places, nothing else
    by_tokens = decoding(max_tokens=30)
    assert_same(by_tokens, alone, *close)
    assert_same(decoding(max_tokens=30), by_tokens, 0.0)
    assert_same(decoding(max_sentences=3, shards=3), alone, *close)
    if dtype == "int8" and not row.startswith("cmlm"):  # which pads the shorter of its own candidates
        lengths = {i: len(decoding.dataset[i]["source"]) for i in ids}
        for _, each in groupby(sorted(ids, key=lengths.__getitem__), key=lengths.__getitem__):
            group = list(each)
            assert_same(decoding(group), {i: alone[i] for i in group}, 0.0)


@pytest.mark.parametrize(
    "row",
    [
        *("imdecoder", "dynamicconv", "transformer_local", "cmlmc_amlp_cov"),
        *(pytest.param(row, id=f"{row}-long", marks=pytest.mark.long) for row in SYSTEMS),
    ],
)
def test_training_again_gives_the_same_parameters(
    row: str, data: Path, tmp_path: Path, system: Callable[[str], System], request: pytest.FixtureRequest
) -> None:
    """Bit for bit; the long version in a process of its own, whose sets have other orders."""
    words = ["--corpus", "embedded", "--row", row, "--scale", "embedded", *TINY, "--save-dir", tmp_path]
    expected = torch.load(system(row).checkpoint, weights_only=False)["model"]
    if request.node.get_closest_marker("long"):
        commands.fresh("amlp_fairseq.training.train", data, *words, env={"PYTHONHASHSEED": "2"})
    else:
        commands.run("amlp_fairseq.training.train", data, *words)
    found = torch.load(tmp_path / "checkpoint_last.pt", weights_only=False)["model"]
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.long
@pytest.mark.parametrize("row", SYSTEMS)
def test_generating_again_gives_the_same_lines(row: str, system: Callable[[str], System]) -> None:
    """In processes of their own, whose sets have other orders."""
    outputs = [
        commands.fresh("fairseq_cli.generate", *system(row).options, env={"PYTHONHASHSEED": seed}).stdout
        for seed in ("1", "2")
    ]
    first, second = ([commands.lines(output, prefix) for prefix in "SHP"] for output in outputs)
    assert len(first[1]) == 21
    assert first == second
