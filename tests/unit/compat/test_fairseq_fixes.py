"""What stock fairseq gets wrong on current numpy, with ``--bf16`` and torchrun, when killed and with the last batch."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toy
from fairseq import options
from fairseq.data import data_utils
from fairseq.dataclass.configs import FairseqConfig
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from amlp_fairseq.tasks.translation_interleaved import TranslationInterleavedConfig, TranslationInterleavedTask

SENTENCES = 13


def test_numpy_names_that_fairseq_uses() -> None:
    assert np.zeros(1, dtype=np.float).dtype == np.float64
    assert np.array([1.7]).astype(np.int).tolist() == [1]
    assert np.vectorize(lambda x: x + 1, otypes=[np.compat.long])([1, 2]).tolist() == [2, 3]


@pytest.mark.parametrize(("method", "expected"), [("lower", 2), ("higher", 3), ("linear", 2.5), ("midpoint", 2.5)])
def test_percentile_takes_both_spellings(method: str, expected: float) -> None:
    assert np.percentile([4, 1, 3, 2], 50, interpolation=method) == expected
    assert np.percentile([4, 1, 3, 2], 50, method=method) == expected


def test_percentile_is_otherwise_numpys() -> None:
    table = np.array([[1.0, 2.0, 9.0], [4.0, 6.0, 5.0]])
    assert np.percentile(table, 50) == 4.5
    np.testing.assert_array_equal(np.percentile(table, 50, axis=1, keepdims=True), [[2], [5]])
    np.testing.assert_array_equal(np.percentile(table, [0, 100], 0), [[1, 2, 5], [4, 6, 9]])


def test_fairseq_finds_length_buckets() -> None:
    assert data_utils.get_buckets(np.array([1, 2, 3, 4, 5, 9]), 2).tolist() == [3, 9]


@pytest.mark.parametrize(
    ("get_parser", "command"),
    [
        (options.get_training_parser, "data-bin --arch transformer"),
        (options.get_generation_parser, "data-bin --path model.pt"),
    ],
    ids=["train", "generate"],
)
@pytest.mark.parametrize(
    ("given", "bf16", "tpu"),
    [
        ("--bf16", True, False),
        ("--bf16 --tpu", True, True),
        ("--memory-efficient-bf16", True, False),
        ("--tpu", False, True),
        ("--fp16", False, False),
    ],
)
@pytest.mark.parametrize("from_argv", [False, True], ids=["input_args", "sys.argv"])
def test_bf16_does_not_ask_for_a_tpu(
    given: str,
    bf16: bool,
    tpu: bool,
    get_parser: Callable[[], Any],
    command: str,
    from_argv: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = [*command.split(), *given.split()]
    monkeypatch.setattr(sys, "argv", ["fairseq", *words] if from_argv else ["fairseq"])
    args = options.parse_args_and_arch(get_parser(), None if from_argv else words)
    assert (args.bf16, args.tpu) == (bf16, tpu)


def test_bf16_with_unknown_options() -> None:
    parser = options.get_training_parser()
    args, extra = options.parse_args_and_arch(
        parser, ["data-bin", "--arch", "transformer", "--bf16", "--strange"], parse_known=True
    )
    assert (args.bf16, args.tpu, extra) == (True, False, ["--strange"])


TORCHRUN = {"MASTER_ADDR": "localhost", "MASTER_PORT": "1", "WORLD_SIZE": "4", "RANK": "1"}


@pytest.mark.parametrize("missing", [None, *TORCHRUN])
def test_only_processes_of_torchrun_must_be_joined(missing: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    ran: list[FairseqConfig] = []
    cfg = FairseqConfig()
    cfg.distributed_training.distributed_world_size = 1  # also where there are GPUs
    if missing is None:
        with pytest.raises(ValueError, match="torchrun has started 4 processes, --distributed-world-size is 1"):
            distributed_utils.call_main(cfg, ran.append)
        assert not ran
    else:
        monkeypatch.delenv(missing)
        distributed_utils.call_main(cfg, ran.append)
        assert ran == [cfg]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences of 1 to 13 words that ``--dataset-impl raw`` reads."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = random.Random(1)
    words = [f"w{i}" for i in range(12)]
    for language in ("src", "tgt"):
        lengths = rng.sample(range(1, SENTENCES + 1), SENTENCES)
        sentences = [" ".join(rng.choices(words, k=length)) for length in lengths]
        (folder / f"dict.{language}.txt").write_text("".join(f"{word} 1\n" for word in words))
        (folder / f"test.src-tgt.{language}").write_text("\n".join(sentences) + "\n")
    return folder


def task_with_data(kind: Any, config: Any, corpus: Path, **given: Any) -> Any:
    languages = {"source_lang": "src", "target_lang": "tgt"}
    result = kind.setup_task(
        config(data=str(corpus), **languages, dataset_impl="raw", required_seq_len_multiple=1, **given)
    )
    result.load_dataset("test")
    return result


def interleaved_task(corpus: Path, **given: Any) -> TranslationInterleavedTask:
    return task_with_data(TranslationInterleavedTask, TranslationInterleavedConfig, corpus, **given)


def batches(task: Any, **limits: int) -> list[dict[str, Any]]:
    iterator = task.get_batch_iterator(
        task.dataset("test"), max_positions=(64, 64), required_batch_size_multiple=8, **limits
    )
    return list(iterator.next_epoch_itr(shuffle=False))


def sentences(found: list[dict[str, Any]]) -> list[int]:
    return sorted(i for batch in found for i in batch["id"].tolist())


LIMITS: list[dict[str, int]] = [{"max_sentences": 4}, {"max_sentences": 16}, {"max_tokens": 30}, {"max_tokens": 150}]


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_no_sentence_is_lost(limits: dict[str, int], corpus: Path) -> None:
    assert sentences(batches(interleaved_task(corpus), **limits)) == list(range(SENTENCES))


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_batches_keep_their_limits(limits: dict[str, int], corpus: Path) -> None:
    found = batches(interleaved_task(corpus), **limits)
    for batch in found:
        rows, width = batch["target"].shape
        assert rows <= limits.get("max_sentences", SENTENCES)
        assert rows * max(width, batch["net_input"]["src_tokens"].size(1)) <= limits.get("max_tokens", 1000)


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_the_stock_task_loses_sentences(limits: dict[str, int], corpus: Path) -> None:
    """The trap that the plugin's task avoids; when this fails, fairseq has changed."""
    found = sentences(batches(task_with_data(TranslationTask, TranslationConfig, corpus), **limits))
    assert len(found) == len(set(found)) < SENTENCES


def log_likelihood(model: Any, found: list[dict[str, Any]]) -> float:
    total = 0.0
    for batch in found:
        with torch.no_grad():
            lprobs = model.get_normalized_probs(model(**batch["net_input"]), log_probs=True)
        target = model.get_targets(batch, None)
        words = lprobs.gather(2, target.unsqueeze(2)).squeeze(2)
        total += float(words[target.ne(model.decoder.padding_idx)].sum())
    return total


@pytest.mark.parametrize("pattern", [(2, 1), (2, 2)], ids=str)
def test_length_buckets(pattern: tuple[int, int], corpus: Path) -> None:
    """``--num-batch-buckets``: few different widths, all sentences, the same likelihood."""
    given = {"num_directions": pattern[0], "words_per_direction": pattern[1]}
    plain_task, bucket_task = interleaved_task(corpus, **given), interleaved_task(corpus, **given, num_batch_buckets=2)
    plain, bucketed = batches(plain_task, max_tokens=60), batches(bucket_task, max_tokens=60)
    assert sentences(bucketed) == list(range(SENTENCES))
    assert len({batch["net_input"]["src_tokens"].size(1) for batch in bucketed}) <= 2
    model = toy.model(plain_task)
    assert log_likelihood(model, bucketed) == pytest.approx(log_likelihood(model, plain), rel=1e-5)


def test_a_killed_copy_leaves_the_checkpoint_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newest, last = tmp_path / "checkpoint7.pt", tmp_path / "checkpoint_last.pt"
    newest.write_bytes(b"epoch seven")
    last.write_bytes(b"epoch six")

    def killed(source: str, target: str) -> None:
        Path(target).write_bytes(Path(source).read_bytes()[:4])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", killed)
        with pytest.raises(KeyboardInterrupt):
            PathManager.copy(str(newest), str(last), overwrite=True)
    assert last.read_bytes() == b"epoch six"
    assert PathManager.copy(str(newest), str(last), overwrite=True)
    assert last.read_bytes() == b"epoch seven"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint7.pt", "checkpoint_last.pt"]
