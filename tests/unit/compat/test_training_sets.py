"""Several training sets in a folder, as data of back-translation are."""

from __future__ import annotations

from pathlib import Path

import pytest
import toy
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from amlp_fairseq.tasks.translation_cmlmc import TranslationCMLMCConfig, TranslationCMLMCTask
from amlp_fairseq.tasks.translation_interleaved import TranslationInterleavedConfig, TranslationInterleavedTask

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
