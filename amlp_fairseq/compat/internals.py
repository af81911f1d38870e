"""Parts of fairseq that are not its public interface, imported here and nowhere else.

Public is what fairseq's packages (``fairseq.data``, ``dataclass``, ``models``, ``models.nat``,
``models.text_to_speech``, ``models.transformer``, ``modules``, ``tasks``) export, ``fairseq.tasks.translation``, and
the modules ``checkpoint_utils``, ``options`` and ``utils``.
"""

from fairseq.criterions import register_criterion
from fairseq.criterions.adaptive_loss import AdaptiveLoss, AdaptiveLossConfig
from fairseq.criterions.nat_loss import LabelSmoothedDualImitationCriterion as NATLoss
from fairseq.criterions.nat_loss import LabelSmoothedDualImitationCriterionConfig as NATLossConfig
from fairseq.data import data_utils, indexed_dataset
from fairseq.data.multilingual.multilingual_utils import get_lang_tok
from fairseq.dataclass.configs import FairseqConfig, GenerationConfig
from fairseq.dataclass.utils import convert_namespace_to_omegaconf, gen_parser_from_dataclass, overwrite_args_by_name
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from fairseq.iterative_refinement_generator import DecoderOut
from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    ARCH_MODEL_INV_REGISTRY,
    ARCH_MODEL_NAME_REGISTRY,
    ARCH_MODEL_REGISTRY,
    MODEL_DATACLASS_REGISTRY,
    MODEL_REGISTRY,
)
from fairseq.models.speech_to_speech import (
    S2SpecTTransformerModel,
    S2STransformerEncoder,
    S2STransformerMultitaskModelBase,
    S2UTTransformerModel,
    TransformerUnitDecoder,
)
from fairseq.models.speech_to_speech.modules.stacked_embedding import StackedEmbedding
from fairseq.models.transformer_align import TransformerAlignModel
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY
from fairseq.tasks.translation_lev import NOISE_CHOICES, TranslationLevenshteinConfig, TranslationLevenshteinTask
from fairseq.trainer import Trainer
from fairseq.utils import eval_str_list

__all__ = [
    "ARCH_CONFIG_REGISTRY",
    "ARCH_MODEL_INV_REGISTRY",
    "ARCH_MODEL_NAME_REGISTRY",
    "ARCH_MODEL_REGISTRY",
    "MODEL_DATACLASS_REGISTRY",
    "MODEL_REGISTRY",
    "NOISE_CHOICES",
    "TASK_DATACLASS_REGISTRY",
    "TASK_REGISTRY",
    "AdaptiveLoss",
    "AdaptiveLossConfig",
    "DecoderOut",
    "FairseqConfig",
    "FairseqIncrementalState",
    "GenerationConfig",
    "NATLoss",
    "NATLossConfig",
    "S2STransformerEncoder",
    "S2STransformerMultitaskModelBase",
    "S2SpecTTransformerModel",
    "S2UTTransformerModel",
    "StackedEmbedding",
    "Trainer",
    "TransformerAlignModel",
    "TransformerDecoderLayerBase",
    "TransformerEncoderLayerBase",
    "TransformerUnitDecoder",
    "TranslationLevenshteinConfig",
    "TranslationLevenshteinTask",
    "convert_namespace_to_omegaconf",
    "data_utils",
    "eval_str_list",
    "gen_parser_from_dataclass",
    "get_lang_tok",
    "indexed_dataset",
    "init_bert_params",
    "overwrite_args_by_name",
    "register_criterion",
]
