"""CMLMC, fairseq's own non-autoregressive models, and reranking under fairseq's commands."""

from __future__ import annotations

import logging
import math
import random
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import commands
import pytest
import sacrebleu
import tolerance
import torch
from fairseq import checkpoint_utils, options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.sequence_scorer import SequenceScorer

from amlp_fairseq.models.cmlmc import CMLMCTransformerModel
from amlp_fairseq.search import iterative_refinement
from amlp_fairseq.tasks.translation_cmlmc import TranslationCMLMCConfig, TranslationCMLMCTask

pytestmark = pytest.mark.xdist_group("cmlmc-command-line")
PLUGIN: list[Any] = ["--user-dir", commands.PLUGIN]
TASK = [*PLUGIN, "--task", "translation_cmlmc"]
LAST = "checkpoint_last.pt"
WORDS = [f"w{i}" for i in range(9)]
CMLMC = ["--arch", "cmlmc_transformer_tiny", "--share-all-embeddings", "--self-correction", 3]
DECODING = ["--iter-decode-max-iter", 2, "--iter-decode-with-beam", 2]
TINY = [
    *(word for side in ("encoder", "decoder") for word in (f"--{side}-embed-dim", 16, f"--{side}-layers", 2)),
    *("--encoder-attention-heads", 2, "--decoder-attention-heads", 2),
]


def train(data: Path, save: Path, *arguments: object, updates: int = 5) -> str:
    nat = [*commands.TRAINING]
    nat[nat.index("label_smoothed_cross_entropy")] = "nat_loss"
    return commands.run(
        *("fairseq_cli.train", data, *TASK, *nat, "--lr", 0.01, "--max-tokens", 200, "--max-update", updates),
        *("--save-dir", save, "--no-epoch-checkpoints", "--log-interval", 1, *arguments),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A binarised corpus of random sentences, mostly of one word, whose targets are their sources; a CMLMC model, and
    an autoregressive one under fairseq's own task."""
    path = tmp_path_factory.mktemp("cmlmc")
    rng = random.Random(1)
    (path / "raw").mkdir()
    sentences = {
        split: [" ".join(rng.choices(WORDS, [16, *[1] * 8], k=rng.randint(3, 8))) for _ in range(count)]
        for split, count in {"train": 60, "valid": 11, "test": 13}.items()
    }
    sentences["long"] = [" ".join(["w1"] * n) for n in (1, 253, 254, 300)]
    for split, rows in sentences.items():
        for language in ("src", "tgt"):
            (path / f"raw/{split}.{language}").write_text("\n".join(rows) + "\n", encoding="utf-8")
    raw, data = path / "raw", path / "data-bin"
    commands.run(
        *("fairseq_cli.preprocess", "-s", "src", "-t", "tgt", "--destdir", data, "--joined-dictionary"),
        *("--trainpref", raw / "train", "--validpref", raw / "valid", "--testpref", f"{raw}/test,{raw}/long"),
    )
    best = ["--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"]
    bleu = ["--eval-bleu", "--eval-bleu-args", '{"iter_decode_max_iter": 2, "iter_decode_with_beam": 2}', *best]
    log = train(data, path / "nat", *CMLMC, *bleu)
    (path / "nat/log").write_text(log, encoding="utf-8")
    commands.run(
        *("fairseq_cli.train", data, *PLUGIN, "--task", "translation", "--arch", "transformer_tiny"),
        *(*commands.TRAINING, "--lr", 0.01, "--max-tokens", 200, "--max-update", 3),
        *("--save-dir", path / "ar", "--no-epoch-checkpoints"),
    )
    return path


def raw(folder: Path, split: str) -> list[str]:
    return (folder / f"raw/{split}.tgt").read_text(encoding="utf-8").splitlines()


def generate(folder: Path, paths: object, *arguments: object, check: bool = True) -> str:
    return commands.run(
        "fairseq_cli.generate", folder / "data-bin", *TASK, "--path", paths, "--cpu", *arguments, check=check
    )


@pytest.fixture(scope="module")
def generated(folder: Path) -> str:
    """The translations of the validation sentences, decoded as in validation."""
    arguments = ["--gen-subset", "valid", "--print-step", "--retain-iter-history", *DECODING]
    return generate(folder, folder / "nat" / LAST, *arguments)


@pytest.fixture(scope="module")
def reranked(folder: Path) -> str:
    arguments = ["--iter-decode-max-iter", 2, "--iter-decode-with-beam", 3, "--rescore-path", folder / "ar" / LAST]
    return generate(folder, folder / "nat" / LAST, *arguments)


def numbers(log: str, kind: str) -> list[dict[str, float]]:
    """What each line of a kind (``train_inner``, ``valid``) of a training's log says."""
    return [
        {name: float(value) for name, value in re.findall(r"(\w+)[= ](-?[\d.]+(?:e-?\d+)?)(?=,| \||$)", line)}
        for line in log.splitlines()
        if f":{kind}:" in line
    ]


def test_bleu_during_training(folder: Path) -> None:
    valid = numbers((folder / "nat/log").read_text(encoding="utf-8"), "valid")
    assert len(valid) == 2
    assert all(line["bleu"] > 0 for line in valid)
    best = checkpoint_utils.load_checkpoint_to_cpu(str(folder / "nat/checkpoint_best.pt"))
    assert best["extra_state"]["best"] == max(line["bleu"] for line in valid)


def test_correction_begins_after_its_updates(folder: Path) -> None:
    lines = numbers((folder / "nat/log").read_text(encoding="utf-8"), "train_inner")
    assert [line["num_updates"] for line in lines] == [1, 2, 3, 4, 5]
    assert ["correction" in line for line in lines] == [False, False, False, True, True]
    assert all("word_ins" in line and "length" in line for line in lines)


def test_every_sentence_is_translated(folder: Path, generated: str) -> None:
    references = raw(folder, "valid")
    assert commands.lines(generated, "S") == {i: [words] for i, words in enumerate(references)}
    assert commands.lines(generated, "T") == {i: [words] for i, words in enumerate(references)}
    hypotheses, detokenized = commands.lines(generated, "H"), commands.lines(generated, "D")
    assert detokenized == hypotheses
    assert hypotheses.keys() == set(range(11))
    scores, steps = commands.lines(generated, "P"), commands.lines(generated, "I")
    for i, (score, words) in hypotheses.items():
        assert words
        assert not set(words.split()) & {"<s>", "</s>", "<pad>"}
        positional = [float(value) for value in scores[i][0].split()]
        assert len(positional) == len(words.split()) + 1
        assert float(score) == pytest.approx(sum(positional[:-1]) / (len(positional) - 1), abs=1e-3)
        (count,) = map(int, steps[i])
        assert 1 <= count <= 3
        history = re.findall(rf"^E-{i}_(\d+)\t(.*)$", generated, flags=re.MULTILINE)
        assert [int(step) for step, _ in history] == list(range(2 * count))
        assert set(history[0][1].split()) == {"<unk>"}
        assert history[-1][1] == words


def test_printed_bleu_counts_words_only(folder: Path, generated: str) -> None:
    """fairseq's own default scorer works on the symbols of target and hypothesis."""
    hypotheses = [words for _, (_, words) in sorted(commands.lines(generated, "H").items())]
    references = raw(folder, "valid")
    expected = sacrebleu.corpus_bleu(hypotheses, [references], tokenize="none", smooth_method="none", force=True)
    result = re.search(r"BLEU4 = ([\d.]+), ([\d.]+(?:/[\d.]+){3}) .*syslen=(\d+), reflen=(\d+)\)", generated)
    assert result is not None
    assert expected.score > 1  # something to compare
    assert float(result[1]) == pytest.approx(expected.score, abs=tolerance.printed(2))
    assert [float(p) for p in result[2].split("/")] == pytest.approx(expected.precisions, abs=tolerance.printed(1))
    assert int(result[3]) == expected.sys_len == sum(len(words.split()) for words in hypotheses)
    assert int(result[4]) == expected.ref_len == sum(len(words.split()) for words in references)


def test_bleu_during_training_is_that_of_the_outputs(folder: Path, generated: str) -> None:
    hypotheses = [words for _, (_, words) in sorted(commands.lines(generated, "D").items())]
    valid = numbers((folder / "nat/log").read_text(encoding="utf-8"), "valid")
    expected = sacrebleu.corpus_bleu(hypotheses, [raw(folder, "valid")]).score
    assert valid[-1]["bleu"] == pytest.approx(expected, abs=tolerance.printed(2))


def test_from_pretrained_translates_text(folder: Path, generated: str) -> None:
    hub = CMLMCTransformerModel.from_pretrained(
        str(folder / "nat"), LAST, str(folder / "data-bin"), bpe=None, tokenizer=None
    )
    found = hub.translate(raw(folder, "valid"), iter_decode_max_iter=2, iter_decode_with_beam=2)
    assert found == [words for _, (_, words) in sorted(commands.lines(generated, "D").items())]


def test_reranked_scores_are_the_autoregressive_models(folder: Path, reranked: str) -> None:
    hypotheses = commands.lines(reranked, "H")
    assert hypotheses.keys() == set(range(13))
    ((model,), _, task) = checkpoint_utils.load_model_ensemble_and_task([str(folder / "ar" / LAST)])
    dictionary = task.target_dictionary
    for i, source in enumerate(raw(folder, "test")):
        score, words = hypotheses[i]
        src, target = (dictionary.encode_line(line).long().unsqueeze(0) for line in (source, words))
        net_input = {"src_tokens": src, "src_lengths": torch.tensor([src.size(1)])}
        net_input["prev_output_tokens"] = target.roll(1, dims=1)
        sample = {"net_input": net_input, "target": target}
        ((reference,),) = SequenceScorer(dictionary).generate([model], sample)
        assert float(score) * math.log(2) == pytest.approx(float(reference["score"]), abs=1e-3)


def test_interactive_reranks_as_generate_and_keeps_every_line_at_its_place(folder: Path, reranked: str) -> None:
    lines = raw(folder, "test")
    empty = 5
    text = [*lines[:empty], "", *lines[empty:], "never seen words"]
    output = commands.run(
        *("fairseq_cli.interactive", folder / "data-bin", *TASK, "--cpu", "-s", "src", "-t", "tgt"),
        *("--path", folder / "nat" / LAST, "--buffer-size", 20, "--batch-size", 4),
        *("--iter-decode-max-iter", 2, "--iter-decode-with-beam", 3, "--rescore-path", folder / "ar" / LAST),
        text="\n".join(text) + "\n",
    )
    hypotheses = commands.lines(output, "H")
    assert list(hypotheses) == list(range(15))
    sources = commands.lines(output, "S")
    assert [sources[i][0] for i in range(15)] == [*text[:-1], "<unk> <unk> <unk>"]
    for i, (score, words) in commands.lines(reranked, "H").items():
        here, found = hypotheses[i + (i >= empty)]
        assert found == words
        assert float(here) == pytest.approx(float(score), abs=1e-4)


def parsed(folder: Path, *arguments: object) -> Any:
    """The configuration that fairseq-generate makes of its command line."""
    words = [str(word) for word in (folder / "data-bin", "--task", "translation_cmlmc", "--path", "x", *arguments)]
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_generation_parser(), words))


UNSUPPORTED = {
    "--prefix-size 1": ["--prefix-size", 1],
    "--score-reference True": ["--score-reference"],
    "--sampling True": ["--sampling"],
    "--print-alignment hard": ["--print-alignment"],
    "--constraints ordered": ["--constraints"],
    "--iter-decode-eos-penalty 1.0": ["--iter-decode-eos-penalty", 1],
    "--decoding-format vote": ["--decoding-format", "vote"],
    "--retain-dropout True": ["--retain-dropout"],
    "--lm-path lm.pt": ["--lm-path", "lm.pt"],
    "--unkpen 1.0": ["--unkpen", 1],
    "--no-repeat-ngram-size 2": ["--no-repeat-ngram-size", 2],
    "--max-len-a 1.2, --max-len-b 10": ["--max-len-a", 1.2, "--max-len-b", 10],
    r"--iter-decode-with-external-reranker True .*--rescore-path\)": ["--iter-decode-with-external-reranker"],
}


@pytest.mark.parametrize("option", UNSUPPORTED)
def test_unsupported_options_are_named(folder: Path, option: str) -> None:
    cfg = parsed(folder, *UNSUPPORTED[option])
    with pytest.raises(ValueError, match=f"--task translation_cmlmc does not have {option}$"):
        tasks.setup_task(cfg.task).build_generator([], cfg.generation)


def test_unsupported_options_stop_the_command(folder: Path) -> None:
    arguments = [word for option in list(UNSUPPORTED)[:7] for word in UNSUPPORTED[option]]
    last = generate(folder, folder / "nat" / LAST, *arguments, "--beam", 1, check=False).splitlines()[-1]
    assert "--task translation_cmlmc does not have" in last
    for option in list(UNSUPPORTED)[:7]:
        assert option in last


def test_supported_options_reach_the_search(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterative_refinement, "inference_nat", lambda model, *options: options)
    cfg = parsed(folder, *DECODING, "--iter-decode-force-max-iter", "--retain-iter-history", "--print-step")
    search = tasks.setup_task(cfg.task).build_generator([], cfg.generation)
    assert (search.max_iter, search.beam_size, search.adaptive, search.retain_history) == (2, 2, False, True)
    cfg = parsed(folder, "--iter-decode-with-beam", 3)
    search = tasks.setup_task(cfg.task).build_generator([], cfg.generation)
    assert (search.max_iter, search.beam_size, search.adaptive, search.reranking_model) == (10, 3, True, None)
    parameters = torch.nn.Linear(1, 1).parameters
    model = SimpleNamespace(initialize_output_tokens=None, _is_generation_fast=True, parameters=parameters)
    assert search.inference_models([model]) == [(None, False)]
    cfg = parsed(folder, "--decode-dtype", "int8", "--cuda-graphs")
    search = tasks.setup_task(cfg.task).build_generator([], cfg.generation)
    assert search.inference_models([model]) == [("int8", True)]


@pytest.mark.parametrize(
    "options",
    [
        ["--left-pad-target"],
        ["--num-batch-buckets", 2],
        ["--noise", "random_delete"],
        ["--truncate-source", "--load-alignments"],
    ],
)
def test_data_that_the_models_do_not_read_are_refused(folder: Path, options: list[Any]) -> None:
    with pytest.raises(ValueError, match=f"{options[0]}.* is not supported "):
        tasks.setup_task(parsed(folder, *options).task)


def test_noisy_parallel_decoding_of_a_stock_model(folder: Path) -> None:
    arch = ["--arch", "nonautoregressive_transformer", *TINY, "--share-all-embeddings", "--noise", "full_mask"]
    log = train(folder / "data-bin", folder / "stock", *arch)
    assert numbers(log, "valid")[-1]["num_updates"] == 5
    output = generate(
        *(folder, folder / "stock" / LAST, "--iter-decode-max-iter", 0),
        *("--iter-decode-with-beam", 3, "--rescore-path", folder / "ar" / LAST, "--print-step"),
    )
    assert commands.lines(output, "H").keys() == set(range(13))
    assert commands.lines(output, "I") == {i: ["1"] for i in range(13)}


def test_training_resumes(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "nat" / LAST, tmp_path / LAST)
    log = train(folder / "data-bin", tmp_path, *CMLMC, updates=7)
    assert "Loaded checkpoint" in log
    lines = numbers(log, "train_inner")
    assert [line["num_updates"] for line in lines] == [6, 7]
    assert all("correction" in line for line in lines)


def test_validation_counts_every_sentence(folder: Path) -> None:
    output = commands.run(
        *("fairseq_cli.validate", folder / "data-bin", *TASK, "--path", folder / "nat" / LAST, "--cpu"),
        *("--valid-subset", "valid", "--max-tokens", 4000, "--log-format", "json"),
    )
    assert '"valid_bsz": "11"' in output  # one batch of all 11 sentences
    assert '"valid_word_ins"' in output


def task(data: Path, **values: Any) -> TranslationCMLMCTask:
    values = {"source_lang": "src", "target_lang": "tgt", "train_subset": "train", **values}
    cfg = TranslationCMLMCConfig(data=str(data), dataset_impl=None, required_seq_len_multiple=1, **values)
    return TranslationCMLMCTask.setup_task(cfg)


def test_only_sources_begin_with_the_start_symbol(folder: Path) -> None:
    loaded = task(folder / "data-bin")
    loaded.load_dataset("test")
    dataset = loaded.dataset("test")
    dictionary = loaded.target_dictionary
    words = [dictionary.encode_line(line, add_if_not_exist=False).tolist() for line in raw(folder, "test")]
    batch = dataset.collater([dataset[i] for i in range(13)])
    for i, source, target in zip(
        batch["id"].tolist(), batch["net_input"]["src_tokens"].tolist(), batch["target"].tolist(), strict=True
    ):
        assert [token for token in source if token != dictionary.pad()] == [dictionary.bos(), *words[i]]
        assert [token for token in target if token != dictionary.pad()] == words[i]
        assert dataset.src_sizes[i] == dataset.sizes[i][0] == len(words[i]) + 1


def test_long_targets_are_warned_of(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        task(folder / "data-bin").load_dataset("test")
        assert not caplog.records
        task(folder / "data-bin").load_dataset("test1")
    (record,) = caplog.records
    assert record.getMessage().startswith("2 target(s) of test1 are longer than 253 words")


def test_data_without_targets(folder: Path, tmp_path: Path) -> None:
    """As fairseq-preprocess --only-source makes them."""
    for file in (folder / "data-bin").iterdir():
        if not file.name.startswith("test.src-tgt.tgt"):
            shutil.copy(file, tmp_path)
    loaded = task(tmp_path)
    loaded.load_dataset("test")
    dataset = loaded.dataset("test")
    batch = dataset.collater([dataset[i] for i in range(13)])
    assert batch["target"] is None
    assert batch["net_input"]["src_tokens"].eq(loaded.source_dictionary.bos()).sum(dim=1).tolist() == [1] * 13


def test_truncated_sources_are_short_enough(folder: Path) -> None:
    loaded = task(folder / "data-bin", truncate_source=True, max_source_positions=5)
    loaded.load_dataset("test")
    assert len(loaded.get_batch_iterator(loaded.dataset("test"), max_positions=loaded.max_positions())) > 0
    assert int(loaded.dataset("test").src_sizes.max()) == 5


def test_a_missing_split_is_named_and_changes_nothing(folder: Path) -> None:
    loaded = task(folder / "data-bin", max_source_positions=5)
    with pytest.raises(FileNotFoundError, match="Dataset not found: nowhere"):
        loaded.load_dataset("nowhere")
    assert loaded.cfg.max_source_positions == 5


def test_a_target_that_fills_the_positions_can_be_trained(folder: Path) -> None:
    """What passes the check of lengths must fit into the decoder, which also reads the start symbol."""
    longest = max(len(line.split()) for line in raw(folder, "test"))
    loaded = task(folder / "data-bin", max_target_positions=longest + 1)
    loaded.load_dataset("test")
    with pytest.raises(ValueError, match=r"sentence\(s\) are too long"):
        loaded.get_batch_iterator(loaded.dataset("test"), max_positions=loaded.max_positions())


def test_a_line_that_fills_the_positions_is_checked_with_its_start_symbol(folder: Path) -> None:
    """fairseq-interactive, where fairseq's own task gives lengths that do not count it."""
    loaded = task(folder / "data-bin", max_source_positions=4)
    line = loaded.source_dictionary.encode_line("w1 w2 w3", add_if_not_exist=False).long()
    dataset = loaded.build_dataset_for_inference([line], [len(line)])
    with pytest.raises(ValueError, match=r"sentence\(s\) are too long"):
        loaded.get_batch_iterator(dataset, max_positions=loaded.max_positions())


def test_another_dictionary_is_named_and_none_is_no_matter(folder: Path) -> None:
    loaded = task(folder / "data-bin")
    loaded.load_state_dict({})
    loaded.load_state_dict(loaded.state_dict())
    with pytest.raises(ValueError, match="the source dictionary of"):
        loaded.load_state_dict({"dictionaries": {"source": "another", "target": "another"}})
