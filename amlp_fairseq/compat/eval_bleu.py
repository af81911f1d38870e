"""Changes of ``fairseq.tasks.translation``: ``--eval-bleu``, whose options are checked when a training begins, and
which logs what BLEU does not say of the hypotheses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import sacrebleu
import torch
from fairseq import utils
from fairseq.data import encoders
from fairseq.logging import metrics
from fairseq.models import BaseFairseqModel
from fairseq.tasks.translation import EVAL_BLEU_ORDER, TranslationTask
from sacrebleu.metrics import BLEU

from amlp_fairseq.compat.internals import GenerationConfig, TranslationLevenshteinTask, data_utils
from amlp_fairseq.text.bleu import bleu_of

#: JSON values of the types of fairseq's generation options.
VALUES = {int: "a whole number", float: "a number", bool: "true or false"}


class DecodedValidationTask(TranslationTask):
    """fairseq's translation task, with five differences in ``--eval-bleu``.

    - Its options are checked by :meth:`check_eval_bleu`, not by a failure in the first validation, or never.
    - Moses detokenises as for ``--target-lang``; fairseq does as for English.
    - BLEU is of what sacreBLEU's tokeniser for ``--target-lang`` finds; fairseq's is of words between spaces.
    - Beside ``bleu`` are logged, so that TensorBoard has them, too: ``decoder_calls`` a sentence, ``length_error``
      (mean of |words of the hypothesis - words of the reference|) and ``repetition`` (share of the hypotheses' words
      that equal the word before). Words are what ``--eval-bleu-remove-bpe`` leaves.
    - Empty hypotheses count: fairseq leaves out batches that have no others, and without any other ends by
      ``KeyError: 'bleu'``.
    """

    #: Keys of ``--eval-bleu-args``: the generation options that change which words the task's search chooses.
    VALIDATION_OPTIONS = frozenset(
        "beam max_len_a max_len_b min_len unnormalized lenpen unkpen temperature match_source_len no_repeat_ngram_size "
        "sampling sampling_topk sampling_topp diverse_beam_groups diverse_beam_strength diversity_rate".split()
    )

    def check_eval_bleu(self) -> None:
        """Check the options of ``--eval-bleu``, if it is given, and complete those of the detokeniser.

        Raises:
            ValueError: naming the option, its value, and what it could be; if the tokeniser is not installed.
        """
        cfg = self.cfg
        if not cfg.eval_bleu:
            return
        own = type(self).VALIDATION_OPTIONS
        if isinstance(self, TranslationLevenshteinTask) and own is DecodedValidationTask.VALIDATION_OPTIONS:
            raise ValueError("--eval-bleu has no effect under --task translation_lev: give --task translation_cmlmc")
        for name, value in _json_object("--eval-bleu-args", cfg.eval_bleu_args).items():
            if name not in own:
                raise ValueError(
                    f"--eval-bleu-args: the search of this task has no option {name!r} in validation; it has "
                    + ", ".join(sorted(own))
                )
            kind = GenerationConfig.__dataclass_fields__[name].type
            if type(value) is not kind and (kind, type(value)) != (float, int):
                raise ValueError(f"--eval-bleu-args: {name!r} must be {VALUES[kind]}, not {json.dumps(value)}")
        if cfg.eval_bleu_detok not in encoders.TOKENIZER_REGISTRY:
            known = ", ".join(sorted(encoders.TOKENIZER_REGISTRY))
            raise ValueError(f"--eval-bleu-detok {cfg.eval_bleu_detok!r} must be one of {known}")
        languages = {"source_lang": cfg.source_lang, "target_lang": cfg.target_lang}
        given = _json_object("--eval-bleu-detok-args", cfg.eval_bleu_detok_args)
        cfg.eval_bleu_detok_args = json.dumps({**languages, **given})
        if not cfg.eval_tokenized_bleu:
            bleu_of(cfg.target_lang)
        try:
            data_utils.post_process("", cfg.eval_bleu_remove_bpe)
        except NotImplementedError:
            raise ValueError(
                f"--eval-bleu-remove-bpe {cfg.eval_bleu_remove_bpe!r} must be one of sentencepiece, subword_nmt, "
                "wordpiece, letter, silence, _EOW, none"
            ) from None

    def valid_step(self, sample: dict[str, Any], model: BaseFairseqModel, criterion: Any) -> Any:
        return self.with_statistics(super().valid_step(sample, model, criterion))

    def with_statistics(self, result: tuple[Any, Any, dict[str, Any]]) -> tuple[Any, Any, dict[str, Any]]:
        """The result of a validation step, with sums over the hypotheses that it has decoded, if any."""
        loss, sample_size, logs = result
        return loss, sample_size, {**logs, **self.__dict__.pop("_statistics", {})}

    def _inference_with_bleu(self, generator: Any, sample: dict[str, Any], model: BaseFairseqModel) -> Any:
        decoded: list[list[dict[str, Any]]] = []

        def generate(*args: object, **kwargs: object) -> list[list[dict[str, Any]]]:
            decoded.extend(generator.generate(*args, **kwargs))
            return decoded

        with tokenised_for(self.cfg.target_lang):
            bleu = super()._inference_with_bleu(SimpleNamespace(generate=generate), sample, model)
        written = [self._words(hypotheses[0]["tokens"]) for hypotheses in decoded]
        expected = [self._words(utils.strip_pad(target, self.tgt_dict.pad())) for target in sample["target"]]
        pairs = zip(written, expected, strict=True)
        self._statistics = {
            "_decoded": len(written),
            "_calls": sum(hypotheses[0]["steps"] for hypotheses in decoded),
            "_length_errors": sum(abs(len(words) - len(reference)) for words, reference in pairs),
            "_words": sum(map(len, written)),
            "_repetitions": sum(one == other for words in written for one, other in pairwise(words)),
        }
        return bleu

    def _words(self, tokens: torch.Tensor) -> list[str]:
        return str(self.tgt_dict.string(tokens.int().cpu(), self.cfg.eval_bleu_remove_bpe)).split()

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion: Any) -> None:
        # Sums over processes are tensors; arrays of them are in no checkpoint that can be loaded again.
        logging_outputs = [
            {name: int(value) if name.startswith("_bleu_") else value for name, value in log.items()}
            for log in logging_outputs
        ]
        super().reduce_metrics(logging_outputs, criterion)

        def total(name: str) -> float:
            return float(sum(log.get(name, 0) for log in logging_outputs))

        sentences, words = total("_decoded"), total("_words")
        if sentences == 0:  # a step of the training
            return
        metrics.log_scalar("decoder_calls", total("_calls") / sentences, sentences, round=2)
        metrics.log_scalar("length_error", total("_length_errors") / sentences, sentences, round=2)
        metrics.log_scalar("repetition", total("_repetitions") / max(words, 1), words, round=4)
        if not any(total(f"_bleu_totals_{n}") for n in range(EVAL_BLEU_ORDER)):  # what fairseq leaves out
            for name in ("_bleu_counts", "_bleu_totals"):
                metrics.log_scalar(name, np.zeros(EVAL_BLEU_ORDER, dtype=int))
            for name in ("_bleu_sys_len", "_bleu_ref_len"):
                metrics.log_scalar(name, int(total(name)))
            metrics.log_derived("bleu", _bleu)


@contextmanager
def tokenised_for(language: str) -> Iterator[None]:
    """Let ``sacrebleu.corpus_bleu`` split text as a language needs it, where no tokeniser is named."""
    corpus_bleu = sacrebleu.corpus_bleu

    def corpus_bleu_of(hypotheses: Any, references: Any, tokenize: str | None = None) -> Any:
        if tokenize is not None:
            return corpus_bleu(hypotheses, references, tokenize=tokenize)
        return bleu_of(language).corpus_score(hypotheses, references)

    with patch.object(sacrebleu, "corpus_bleu", corpus_bleu_of):
        yield


def _bleu(meters: Any) -> float:
    """BLEU of the counts of all batches, as fairseq computes it."""
    score = BLEU.compute_bleu(
        correct=meters["_bleu_counts"].sum,
        total=meters["_bleu_totals"].sum,
        sys_len=int(meters["_bleu_sys_len"].sum),
        ref_len=int(meters["_bleu_ref_len"].sum),
        smooth_method="exp",
    )
    return round(score.score, 2)


def _json_object(option: str, text: str) -> dict[str, Any]:
    """The parsed value of an option; raises ValueError if it is not an object in JSON."""
    try:
        result = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{option} {text!r} is not JSON, like '{{\"beam\": 4}}': {error}") from None
    if not isinstance(result, dict):
        raise ValueError(f"{option} {text!r} must be an object in JSON, like '{{\"beam\": 4}}'")
    return result
