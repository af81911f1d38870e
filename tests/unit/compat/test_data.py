"""Words that the dictionary lacks, in binarised text; several training sets in a folder, as for back-translation."""

from __future__ import annotations

import gc
import multiprocessing
import re
from pathlib import Path

import commands
import numpy as np
import pytest
import toy
from fairseq.data import RawLabelDataset, data_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from amlp_fairseq.tasks.translation_cmlmc import TranslationCMLMCConfig, TranslationCMLMCTask
from amlp_fairseq.tasks.translation_interleaved import TranslationInterleavedConfig, TranslationInterleavedTask

IMPLEMENTATIONS = ("mmap", "cached", "lazy")


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("entries", [100, 100_000], ids=["16 bits", "32 bits"])
@pytest.mark.parametrize("sentences", [[[5, 6, 2], [9, 2]], [[0, 1, 3, 9]], [[2]], []], ids=str)
def test_words_of_the_dictionary_are_read(impl: str, entries: int, sentences: list[list[int]], tmp_path: Path) -> None:
    """Those with the smallest and the largest number too."""
    toy.binarise(tmp_path / "train", sentences, impl, entries)
    if not sentences and impl == "mmap":  # an empty file cannot be mapped
        with pytest.raises(ValueError, match=rf"^{tmp_path}/train\.bin has no sentences$"):
            data_utils.load_indexed_dataset(str(tmp_path / "train"), toy.dictionary(6), impl)
        return
    read = data_utils.load_indexed_dataset(str(tmp_path / "train"), toy.dictionary(6), impl)
    if impl == "cached":
        read.prefetch(range(len(sentences)))
    assert [read[i].tolist() for i in range(len(read))] == sentences


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("entries", [100, 100_000], ids=["16 bits", "32 bits"])
def test_words_beyond_the_dictionary_are_named(impl: str, entries: int, tmp_path: Path) -> None:
    toy.binarise(tmp_path / "train", [[5, 6, 2], [9, 10, 2]], impl, entries)
    message = re.escape(f"{tmp_path}/train.bin has a word with number 10, its dictionary has 10 entries")
    with pytest.raises(ValueError, match=f"^{message}"):
        data_utils.load_indexed_dataset(str(tmp_path / "train"), toy.dictionary(6), impl)
    assert len(data_utils.load_indexed_dataset(str(tmp_path / "train"), toy.dictionary(7), impl)) == 2
    assert len(data_utils.load_indexed_dataset(str(tmp_path / "train"), None, impl)) == 2


@pytest.mark.parametrize(
    ("impl", "damaged", "number"),
    [("mmap", b"\xff\xff\xff\xff", 2**32 - 1), ("cached", b"\x00\x00\x00\x00", -1)],
)
def test_numbers_that_no_dictionary_has(impl: str, damaged: bytes, number: int, tmp_path: Path) -> None:
    toy.binarise(tmp_path / "train", [[5, 6, 2], [9, 10, 2]], impl, 100_000)
    data = tmp_path / "train.bin"
    data.write_bytes(data.read_bytes()[:8] + damaged + data.read_bytes()[12:])
    with pytest.raises(ValueError, match=f"word with number {number}, its dictionary has 100000 entries"):
        data_utils.load_indexed_dataset(str(tmp_path / "train"), toy.dictionary(99_996), impl)


def test_data_of_a_larger_dictionary(tmp_path: Path) -> None:
    """As a user meets it: dict.*.txt was taken from another folder."""
    for split in ("train", "valid", "test"):
        for language in ("src", "tgt"):
            (tmp_path / f"{split}.{language}").write_text("w1 w2 w3\n" * 8, encoding="utf-8")
    data = commands.preprocess(tmp_path, tmp_path / "data", "src", "tgt")
    (data / "dict.tgt.txt").write_text("w1 24\nw2 24\n", encoding="utf-8")
    training = ["--arch", "ibdecoder_tiny", "--lr", "0.1", "--max-tokens", "50", "--max-update", "1"]
    printed = commands.run(
        *("fairseq_cli.train", data, "--user-dir", commands.PLUGIN, *commands.TRAINING, *training),
        *("--task", "translation_interleaved", "--save-dir", tmp_path / "checkpoints"),
        check=False,
    )
    assert printed.splitlines()[-1].startswith(
        f"ValueError: {data}/valid.src-tgt.tgt.bin has a word with number 6, its dictionary has 6 entries: "
    )


SETS = {"train": [[4, 5, 2], [6, 2]], "train1": [[7, 2]], "train2": [[5, 4, 6, 2], [7, 7, 2]]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    dictionary = toy.dictionary(4)
    for language in ("en", "de"):
        dictionary.save(str(tmp_path / f"dict.{language}.txt"))
        for name, sentences in SETS.items():
            toy.binarise(tmp_path / f"{name}.en-de.{language}", sentences)
    return tmp_path


@pytest.mark.parametrize(
    ("task", "config"),
    [
        (TranslationTask, TranslationConfig),
        (TranslationInterleavedTask, TranslationInterleavedConfig),
        (TranslationCMLMCTask, TranslationCMLMCConfig),
    ],
)
@pytest.mark.parametrize(("options", "times"), [({}, 1), ({"upsample_primary": 1}, 1), ({"upsample_primary": 3}, 3)])
def test_all_are_read(task: type, config: type, options: dict[str, int], times: int, folder: Path) -> None:
    """Each once, the first as often as ``--upsample-primary`` says."""
    cfg = config(data=str(folder), source_lang="en", target_lang="de", dataset_impl="mmap", **options)
    made = task.setup_task(cfg)
    made.load_dataset("train", combine=True)
    dataset = made.dataset("train")
    expected = [*SETS["train"] * times, *SETS["train1"], *SETS["train2"]]
    assert [dataset[i]["target"].tolist() for i in range(len(dataset))] == expected


def test_workers_end_with_the_last_reference_to_their_batches() -> None:
    """Left to the garbage collector they would be waited for, 5 seconds each; epochs are shuffled as ever."""
    dataset = RawLabelDataset([3, 1, 4, 1, 5, 9])
    gc.disable()
    try:
        batches = EpochBatchIterator(
            dataset,
            dataset.collater,
            [[0, 1], [2, 3], [4, 5]],
            num_workers=1,
            buffer_size=2,
            reuse_dataloader=True,
            persistent_workers=True,
        )
        for epoch in (1, 2):
            with data_utils.numpy_seed(batches.seed + epoch):
                order = np.random.permutation(3)
            found = [batch.tolist() for batch in batches.next_epoch_itr()]
            assert found == [[[3, 1], [4, 1], [5, 9]][i] for i in order]
        assert multiprocessing.active_children()
        del batches
        assert not multiprocessing.active_children()
    finally:
        gc.enable()
