"""Options of --eval-bleu are checked before a training begins."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import commands
import pytest
import tolerance
import torch
import toy
from fairseq.data import Dictionary
from fairseq.logging import metrics
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from sacrebleu.metrics import BLEU

from amlp_fairseq.compat.internals import TranslationLevenshteinConfig, TranslationLevenshteinTask
from amlp_fairseq.compat.tasks import guard
from amlp_fairseq.tasks.translation_cmlmc import TranslationCMLMCConfig, TranslationCMLMCTask
from amlp_fairseq.tasks.translation_interleaved import TranslationInterleavedConfig, TranslationInterleavedTask
from amlp_fairseq.training import train
from amlp_fairseq.training.config import load


@pytest.fixture(scope="module")
def dictionaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dictionaries")
    for language in ("en", "fr"):
        toy.dictionary(12).save(str(folder / f"dict.{language}.txt"))
    return folder


def checked(kind: Any, config: Any, folder: Path, **options: str) -> Any:
    """A task as a training makes it, until its model has been built."""
    given = {f"eval_bleu_{name}": value for name, value in options.items()}
    task = kind.setup_task(config(data=str(folder), source_lang="en", target_lang="fr", eval_bleu=True, **given))
    guard(task)
    return task


STOCK = TranslationTask, TranslationConfig
INTERLEAVED = TranslationInterleavedTask, TranslationInterleavedConfig
CMLMC = TranslationCMLMCTask, TranslationCMLMCConfig


@pytest.mark.parametrize(
    ("task", "arguments"),
    [
        (STOCK, '{"beam": 4, "lenpen": 1, "max_len_a": 1.2, "sampling": false}'),
        (INTERLEAVED, '{"beam": 4, "unnormalized": true, "no_repeat_ngram_size": 3}'),
        (CMLMC, '{"iter_decode_max_iter": 4, "iter_decode_with_beam": 3}'),
    ],
)
def test_options_that_the_search_obeys(task: tuple[Any, Any], arguments: str, dictionaries: Path) -> None:
    made = checked(*task, dictionaries, args=arguments, detok="moses", remove_bpe="sentencepiece")
    made.cfg.eval_bleu_detok_args = '{"target_lang": "en"}'
    made.check_eval_bleu()  # what the user gives stays
    assert '"target_lang": "en"' in made.cfg.eval_bleu_detok_args


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        (STOCK, {"args": '{"beem": 4}'}, r"--eval-bleu-args: .* no option 'beem' .* has beam, "),
        (STOCK, {"args": '{"iter_decode_max_iter": 4}'}, "no option 'iter_decode_max_iter'"),
        (STOCK, {"args": '{"beam": "4"}'}, "'beam' must be a whole number, not \"4\""),
        (INTERLEAVED, {"args": '{"beam": true}'}, "'beam' must be a whole number, not true"),
        (INTERLEAVED, {"args": '{"sampling": true}'}, "no option 'sampling'"),
        (INTERLEAVED, {"args": '{"retain_dropout": true}'}, "no option 'retain_dropout'"),
        (CMLMC, {"args": '{"beam": 4}'}, "no option 'beam' .* iter_decode_with_beam"),
        (CMLMC, {"args": '{"iter_decode_with_external_reranker": true}'}, "no option 'iter_decode_with_external"),
        (STOCK, {"args": "{'beam': 4}"}, r'--eval-bleu-args "\{\'beam\': 4\}" is not JSON, like'),
        (STOCK, {"args": "4"}, "--eval-bleu-args '4' must be an object in JSON"),
        (STOCK, {"detok": "mozes"}, "--eval-bleu-detok 'mozes' must be one of moses, nltk, space"),
        (STOCK, {"detok_args": "[]"}, r"--eval-bleu-detok-args '\[\]' must be an object"),
        (STOCK, {"remove_bpe": "sentence"}, "--eval-bleu-remove-bpe 'sentence' must be one of sentencepiece, "),
        ((TranslationLevenshteinTask, TranslationLevenshteinConfig), {}, "give --task translation_cmlmc"),
    ],
)
def test_options_that_would_do_nothing_or_fail_later(
    task: tuple[Any, Any], options: dict[str, str], message: str, dictionaries: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        checked(*task, dictionaries, **options)


def test_moses_detokenises_as_in_the_target_language(dictionaries: Path) -> None:
    task = checked(*STOCK, dictionaries, detok="moses")
    assert '"target_lang": "fr"' in task.cfg.eval_bleu_detok_args


class Copies:
    """A search that writes the words that it was given, for a batch of one sentence each."""

    def __init__(self, written: list[list[int]]) -> None:
        self.written = written

    def generate(self, *_: Any, **__: Any) -> list[list[dict[str, Any]]]:
        return [[{"tokens": torch.tensor(words), "steps": len(words)}] for words in self.written]


class NoLoss:
    def __call__(self, model: Any, sample: Any) -> Any:
        return torch.tensor(0.0), 1, {"nsentences": 1, "ntokens": 1}

    @staticmethod
    def reduce_metrics(logging_outputs: Any) -> None:
        pass


def validated(task: Any, batches: list[tuple[list[list[int]], list[list[int]]]]) -> dict[str, float]:
    """What a validation logs that writes the first words where the second were expected."""

    task.tokenizer = None
    with metrics.aggregate(new_root=True) as found:
        for written, expected in batches:
            task.sequence_generator = Copies(written)
            log = task.valid_step({"target": torch.tensor(expected)}, torch.nn.Module(), NoLoss())[2]
            task.reduce_metrics([log], NoLoss())
    return dict(found.get_smoothed_values())


A, B, C, D, END, PAD = 4, 5, 6, 7, 2, 1


def test_numbers_by_hand(dictionaries: Path) -> None:
    """Two batches of hypotheses: 5 sentences of 5 + 2 + 0 + 1 + 4 words."""
    task = checked(*STOCK, dictionaries)
    found = validated(
        task,
        [
            ([[A, A, A, B, C, END], [C, C, END]], [[A, A, A, B, END, PAD], [C, END, PAD, PAD, PAD, PAD]]),
            ([[END], [B, END], [A, B, C, D, END]], [[A, B, END, PAD, PAD], [B, END, PAD, PAD, PAD], [A, B, C, D, END]]),
        ],
    )
    assert found["decoder_calls"] == pytest.approx((6 + 3 + 1 + 2 + 5) / 5, abs=tolerance.printed(2))
    assert found["length_error"] == pytest.approx((1 + 1 + 2 + 0 + 0) / 5, abs=tolerance.printed(2))
    assert found["repetition"] == pytest.approx(3 / 12, abs=tolerance.printed(4))
    names = "w0 w0 w0 w1 w2|w2 w2||w1|w0 w1 w2 w3", "w0 w0 w0 w1|w2|w0 w1|w1|w0 w1 w2 w3"
    written, expected = (text.split("|") for text in names)
    assert found["bleu"] == pytest.approx(BLEU().corpus_score(written, [expected]).score, abs=tolerance.printed(2))


@pytest.mark.parametrize(("language", "tokeniser"), [("fr", "13a"), ("zho_Hans", "zh")])
def test_words_are_those_of_the_target_language(dictionaries: Path, language: str, tokeniser: str) -> None:
    """Of Chinese its characters, whatever the standard of the code."""
    task = checked(*STOCK, dictionaries)
    task.cfg.target_lang = language
    task.tgt_dict = Dictionary()
    for word in ("我昨天在大学看书学习了", "我昨天在大学读书学习了", "。", "和"):
        task.tgt_dict.add_symbol(word)
    found = validated(task, [([[A, C, END], [D, END]], [[B, C, END], [D, END, PAD]])])
    texts = ["我昨天在大学看书学习了 。", "和"], [["我昨天在大学读书学习了 。", "和"]]
    assert found["bleu"] == pytest.approx(BLEU(tokenize=tokeniser).corpus_score(*texts).score, abs=tolerance.printed(2))
    assert (found["bleu"] > 40) == (tokeniser == "zh")


def test_a_tokeniser_that_is_not_installed_is_named(dictionaries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "MeCab", None)
    task = checked(*STOCK, dictionaries)
    task.cfg.target_lang = "jpn_Jpan"
    with pytest.raises(ValueError, match=r'pip install "sacrebleu\[ja\]"'):
        task.check_eval_bleu()


def test_empty_hypotheses_are_not_left_out(dictionaries: Path) -> None:
    """fairseq has no ``bleu`` if all are, and if all of a batch are, no brevity penalty for it."""
    task = checked(*STOCK, dictionaries)
    empty, right = ([[END]], [[A, B, C, D, END]]), ([[A, B, C, D, END]], [[A, B, C, D, END]])
    assert validated(task, [empty, empty])["bleu"] == 0
    half = BLEU().corpus_score(["", "w0 w1 w2 w3"], [["w0 w1 w2 w3"] * 2]).score
    for batches in ([empty, right], [right, empty]):
        assert validated(task, batches)["bleu"] == pytest.approx(half, abs=tolerance.printed(2))


def test_a_row_whose_scale_does_not_validate_does_for_bleu(tmp_path: Path) -> None:
    row = load("ibdecoder", "embedded", "embedded")
    for given, validates in (([], False), (["--eval-bleu"], True)):
        words = train.command(row, Path("data"), tmp_path, ["--cpu", *given], {})
        assert ("--disable-validation" not in words) == validates


def test_a_mistake_is_one_line(tmp_path: Path, dictionaries: Path) -> None:
    printed = commands.run(
        *("amlp_fairseq.cli.main", "train", dictionaries, "--task", "translation", "--arch", "aan_transformer_tiny"),
        *("-s", "en", "-t", "fr", "--cpu", "--batch-size", 1, "--save-dir", tmp_path),
        *("--eval-bleu", "--eval-bleu-args", '{"beem": 4}'),
        check=False,
    )
    assert "Traceback" not in printed
    assert "no option 'beem'" in printed.splitlines()[-1]


def test_counts_of_several_processes_are_whole_numbers(dictionaries: Path) -> None:
    """fairseq sums logs over processes as tensors; a checkpoint with an array of such could not be loaded again."""
    task = checked(*STOCK, dictionaries)
    task.tokenizer, task.sequence_generator = None, Copies([[A, B, C, D, END]])
    log = task.valid_step({"target": torch.tensor([[A, B, C, D, END]])}, torch.nn.Module(), NoLoss())[2]
    with metrics.aggregate(new_root=True) as found:
        task.reduce_metrics([{name: torch.tensor(value, dtype=torch.double) for name, value in log.items()}], NoLoss())
    assert found["_bleu_counts"].sum.dtype == "int64"
    assert found["_bleu_counts"].sum.tolist() == [4, 3, 2, 1]
