"""Translation with non-autoregressive models: masked targets, and decoding by iterative refinement."""

from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Optional

import torch
from fairseq.data import FairseqDataset
from fairseq.dataclass import FairseqDataclass
from fairseq.models import FairseqEncoderDecoderModel
from fairseq.models.nat import FairseqNATModel
from fairseq.optim import FairseqOptimizer
from fairseq.tasks.translation import TranslationTask
from torch import Tensor

from amlp_fairseq.compat.internals import (
    NOISE_CHOICES,
    GenerationConfig,
    NATLoss,
    TranslationLevenshteinConfig,
    TranslationLevenshteinTask,
)
from amlp_fairseq.compat.registration import register_task
from amlp_fairseq.data.start_symbol_pair_dataset import StartSymbolPairDataset
from amlp_fairseq.search.iterative_refinement import IterativeRefinement
from amlp_fairseq.tasks.auxiliary_models import load_reranking_model
from amlp_fairseq.tasks.plugin_translation import DecodingConfig, PluginTranslationTask


@dataclass
class TranslationCMLMCConfig(TranslationLevenshteinConfig, DecodingConfig):
    """Options of ``translation_cmlmc``: fairseq's for ``translation_lev``, and decoding options."""

    noise: NOISE_CHOICES = field(default="random_mask", metadata={"help": "type of noise"})  # type: ignore[valid-type]


@register_task("translation_cmlmc", dataclass=TranslationCMLMCConfig)
class TranslationCMLMCTask(PluginTranslationTask, TranslationLevenshteinTask):
    """fairseq's ``translation_lev`` with four additions.

    - The model gets the number of updates: CMLMC's correction loss begins after some updates.
    - ``--eval-bleu`` works, and so does ``--best-checkpoint-metric bleu``.
    - ``target`` and hypotheses have no start symbol, so no score counts it.
    - An autoregressive model can rerank the candidates.
    """

    HONOURED_GENERATION_OPTIONS = frozenset(
        "iter_decode_max_iter iter_decode_with_beam iter_decode_force_max_iter "
        "retain_iter_history print_step no_seed_provided no_beamable_mm sacrebleu post_process path".split()
    )
    VALIDATION_OPTIONS = frozenset({"iter_decode_max_iter", "iter_decode_with_beam", "iter_decode_force_max_iter"})
    INSTEAD = MappingProxyType(
        {
            "beam": " (sentences of how many lengths are tried: --iter-decode-with-beam)",
            "iter_decode_with_external_reranker": " (the model that reranks them: --rescore-path)",
        }
    )

    @classmethod
    def setup_task(cls, cfg: TranslationCMLMCConfig, **kwargs: object) -> "TranslationCMLMCTask":
        if cfg.left_pad_target:
            raise ValueError("--left-pad-target is not supported by translation_cmlmc: targets are padded on the right")
        if cfg.num_batch_buckets > 0:
            raise ValueError(f"--num-batch-buckets {cfg.num_batch_buckets} is not supported by translation_cmlmc")
        if cfg.noise == "random_delete":
            raise ValueError("--noise random_delete is not supported by translation_cmlmc: its models fill masks")
        if cfg.load_alignments and cfg.truncate_source:
            raise ValueError("--truncate-source is not supported with --load-alignments, which are of whole sources")
        return super().setup_task(cfg, **kwargs)

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: object) -> None:
        """Load a data set as fairseq's translation task does, with start symbols: :class:`StartSymbolPairDataset`."""
        self.cfg.max_source_positions -= 1  # --truncate-source leaves room for the start symbol
        try:
            TranslationTask.load_dataset(self, split, epoch=epoch, combine=combine, **kwargs)
        finally:
            self.cfg.max_source_positions += 1
        self.datasets[split] = StartSymbolPairDataset(self.datasets[split], split)

    def build_dataset_for_inference(
        self, src_tokens: list[Tensor], src_lengths: Iterable[int], constraints: Optional[list[Tensor]] = None
    ) -> FairseqDataset:
        return super().build_dataset_for_inference(src_tokens, [length + 1 for length in src_lengths], constraints)

    def build_criterion(self, cfg: FairseqDataclass, from_checkpoint: bool = False) -> NATLoss:
        criterion = super().build_criterion(cfg, from_checkpoint)
        if not isinstance(criterion, NATLoss):
            raise ValueError(f"--criterion {cfg._name}: --task translation_cmlmc needs --criterion nat_loss")
        return criterion

    def train_step(
        self,
        sample: dict[str, Any],
        model: FairseqNATModel,
        criterion: NATLoss,
        optimizer: FairseqOptimizer,
        update_num: int,
        ignore_grad: bool = False,
    ) -> tuple[Tensor, int, dict[str, Any]]:
        model.set_num_updates(update_num)
        return super().train_step(self._with_start(sample), model, criterion, optimizer, update_num, ignore_grad)

    def valid_step(
        self, sample: dict[str, Any], model: FairseqNATModel, criterion: NATLoss
    ) -> tuple[Tensor, int, dict[str, Any]]:
        sample = self._with_start(sample)
        sample["prev_target"] = self.inject_noise(sample["target"])
        # TranslationLevenshteinTask.valid_step would leave out BLEU.
        return self.with_statistics(TranslationTask.valid_step(self, sample, model, criterion))

    def _with_start(self, sample: dict[str, Any]) -> dict[str, Any]:
        """The batch with targets that begin with the start symbol, as the models and ``nat_loss`` need them."""
        target = sample["target"]
        start = torch.full_like(target[:, :1], self.target_dictionary.bos())
        return {**sample, "target": torch.cat([start, target], dim=1)}

    def build_generator(
        self,
        models: list[FairseqEncoderDecoderModel],
        args: GenerationConfig | Namespace,
        seq_gen_cls: Optional[type] = None,
        extra_gen_cls_kwargs: Optional[dict[str, Any]] = None,
        prefix_allowed_tokens_fn: Optional[Callable[..., Any]] = None,
    ) -> IterativeRefinement:
        """Iterative refinement with fairseq's ``--iter-decode-…`` options.

        Raises:
            ValueError: naming the options that it cannot honour.
        """
        self.refuse_unsupported_generation_options(args, extra_gen_cls_kwargs, prefix_allowed_tokens_fn)
        return IterativeRefinement(
            self.target_dictionary,
            max_iter=getattr(args, "iter_decode_max_iter", 10),
            beam_size=getattr(args, "iter_decode_with_beam", 1),
            adaptive=not getattr(args, "iter_decode_force_max_iter", False),
            retain_history=getattr(args, "retain_iter_history", False),
            reranking_model=load_reranking_model(self, models),
            decode_dtype=None if self.cfg.decode_dtype is None else str(self.cfg.decode_dtype),
            cuda_graphs=self.cfg.cuda_graphs,
            use_engine=self.use_engine,
            shortlist=self.shortlist(),
        )
