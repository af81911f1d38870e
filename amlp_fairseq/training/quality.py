"""A sign of quality while a model of translation trains: BLEU of a few validation sentences, decoded greedily.

It is not fairseq's validation, which decodes the whole set with ``--eval-bleu``, and decides nothing. It takes a
fiftieth of the time, and changes nothing of the training: no dropout is sampled, and fairseq sets the seed of each
update.
"""

from __future__ import annotations

import contextlib
import logging
import time
from argparse import Namespace
from collections.abc import Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from fairseq.data import encoders
from fairseq.tasks.translation import TranslationTask
from omegaconf import DictConfig

from amlp_fairseq.common.parallel_text import read_references
from amlp_fairseq.compat.eval_bleu import DecodedValidationTask
from amlp_fairseq.compat.internals import Trainer
from amlp_fairseq.text.bleu import bleu_of
from amlp_fairseq.training.data_folder import stored_text

logger = logging.getLogger(__name__)

#: Sentences that are decoded, the first of the validation set.
SENTENCES = 50
#: Seconds after which a training has its first sign.
FIRST = 60.0
#: The part of the time that signs may take.
SHARE = 0.02
#: Decoding options; a task's search takes the ones that it has. A model that knows nothing would go on to 200 words.
OPTIONS = {"beam": 1, "max_len_a": 1.5, "max_len_b": 10, "iter_decode_max_iter": 4}


@contextlib.contextmanager
def shown() -> Iterator[None]:
    """Within it, a training in one process logs the BLEU of a few sentences from time to time, if the folder of its
    data has raw references."""
    train_step, began, spent = Trainer.train_step, time.monotonic(), 0.0
    due = began + FIRST

    @wraps(train_step)
    def with_signs(self: Any, *args: object, **kwargs: object) -> Any:
        nonlocal due, spent
        result = train_step(self, *args, **kwargs)
        if (now := time.monotonic()) >= due:
            bleu = None
            try:
                bleu = sign(self) if self.data_parallel_world_size == 1 else None
            except Exception as error:  # nothing that a training should end for
                logger.warning("no BLEU is shown while it trains: %s: %s", type(error).__name__, error)
            spent += time.monotonic() - now
            due = max(time.monotonic() + FIRST, began + spent / SHARE)
            if bleu is None:
                due = float("inf")
            else:
                text = "BLEU %.1f on the first %d validation sentences, greedily, after %d updates"
                logger.info(text, bleu, SENTENCES, self.get_num_updates())
        return result

    Trainer.train_step = with_signs
    try:
        yield
    finally:
        Trainer.train_step = train_step


def sign(trainer: Any) -> float | None:
    """BLEU of a training's model on the first validation sentences; None where they have no raw references, or it does
    not translate."""
    task = trainer.task
    if not isinstance(task, TranslationTask):
        return None
    data = Path(utils.split_paths(task.cfg.data)[0])
    text, raw = stored_text(data), data / f"raw/valid.{task.cfg.target_lang}"
    if text is None or not raw.is_file():
        return None
    known = getattr(task, "VALIDATION_OPTIONS", DecodedValidationTask.VALIDATION_OPTIONS)
    options = Namespace(**{name: value for name, value in OPTIONS.items() if name in known})
    if "valid" not in task.datasets:
        task.load_dataset("valid")
    dataset = task.dataset("valid")
    references = read_references(raw)[:SENTENCES]
    model = trainer.get_model()
    model.eval()
    sample, _ = trainer._prepare_sample(dataset.collater([dataset[number] for number in range(len(references))]))
    with torch.no_grad():
        found = task.inference_step(task.build_generator([model], options), [model], sample)
    tokenizer = encoders.build_tokenizer(Namespace(tokenizer=text.get("tokenizer"), **_languages(task.cfg)))
    hypotheses = [""] * len(references)
    for number, (best, *_) in zip(sample["id"].tolist(), found, strict=True):
        line = task.tgt_dict.string(best["tokens"].int().cpu(), text.get("post_process"))
        hypotheses[number] = tokenizer.decode(line) if tokenizer else line
    return float(bleu_of(task.cfg.target_lang).corpus_score(hypotheses, [references]).score)


def _languages(cfg: DictConfig) -> dict[str, str]:
    return {"source_lang": cfg.source_lang, "target_lang": cfg.target_lang}
