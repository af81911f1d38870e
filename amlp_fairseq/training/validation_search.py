"""``--eval-bleu`` of fairseq's translation task, decoded by the plugin's search."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from functools import wraps
from typing import Any
from unittest.mock import patch

from fairseq.tasks.translation import TranslationTask

from amlp_fairseq.tasks.translation_interleaved import TranslationInterleavedConfig, TranslationInterleavedTask
from amlp_fairseq.training.engine import is_autoregressive_transformer

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def by_the_plugins_search() -> Iterator[None]:
    """Within it, fairseq's translation task decodes autoregressive Transformers with the multi-word beam search: the
    same words in a fraction of the time. fairseq's own search stays for other models, for generation options that only
    it has (``--eval-bleu-args '{"sampling": true}'``), and in the processes that fairseq itself starts for several
    GPUs, not torchrun."""
    build_generator = TranslationTask.build_generator

    @wraps(build_generator)
    def build(self: Any, models: Any, args: Any, *others: object, **more: object) -> Any:
        options = vars(args)
        known = TranslationInterleavedTask.VALIDATION_OPTIONS
        if (
            type(self) is not TranslationTask
            or not all(is_autoregressive_transformer(type(model)) for model in models)
            or not options.keys() <= known
        ):
            return build_generator(self, models, args, *others, **more)
        logger.info("validation decodes with amlp-fairseq's search")
        cfg = TranslationInterleavedConfig(data=self.cfg.data, num_directions=1)
        return TranslationInterleavedTask(cfg, self.src_dict, self.tgt_dict).build_generator(models, args)

    with patch.object(TranslationTask, "build_generator", build):
        yield
