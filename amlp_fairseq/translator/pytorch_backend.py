"""A model folder in PyTorch: every system, device and decoding option."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils, utils
from omegaconf import DictConfig

from amlp_fairseq.common.arguments import refuse_unknown
from amlp_fairseq.compat.tasks import with_steps
from amlp_fairseq.model_folder.format import PLAIN_TASKS
from amlp_fairseq.model_folder.language_tokens import LanguageTokens
from amlp_fairseq.text.unknown_words import read_translations, replaced
from amlp_fairseq.translator import decoding_options
from amlp_fairseq.translator.backend import Found, Scored, Watch, check_counts
from amlp_fairseq.translator.given import Given
from amlp_fairseq.translator.options import CallOptions

#: Error text for what PyTorch does not do here.
ENGINE_ALONE = "the engine alone has them, which decodes on a CPU, for models and options that it has (docs/options.md)"
#: The default of ``seed``.
SEED = 1
#: Searches that are kept, of those that calls have asked for.
MAX_SEARCHES = 16
#: Attributes that generators share: inference models, and the auxiliary ones.
SHARED = frozenset({"inference_models", "reranker", "reranking_model", "drafter"})


class PyTorchBackend:
    """A model that fairseq has loaded.

    Args:
        folders: of the models, which decode as one.
        config: the first one's ``config.json``.
        device: ``cpu``, ``cuda``, ``cuda:1``, …
        max_tokens: source pieces of a batch, padding included.
        options: decoding options that win over the folder's.

    Attributes:
        model, models: the first one, and all.
        tags: pieces before each source.
        max_pieces: of a source, by the models' positions.

    Raises:
        ValueError: for a damaged folder, and for an argument outside its range.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        config: Mapping[str, Any],
        device: str,
        max_tokens: int,
        options: Mapping[str, Any],
    ) -> None:
        self.folder, self.max_tokens = folders[0], max_tokens
        self.name = name = config["task"]["_name"]
        decoding_options.check({**config["decoding"], **options}, name)
        self.languages: tuple[str, str] = (config["languages"][0], config["languages"][1])
        self.options = {**config["decoding"], **options}
        self.seed = _seed(self.options)
        self.models, self.cfg, self.task = checkpoint_utils.load_model_ensemble_and_task(
            [str(folder) for folder in folders], arg_overrides=_of_fairseq(options)
        )
        self.task.use_engine = False
        refuse_unknown(options, sorted(decoding_options.known(name)), "Translator")
        nbest = _nbest(self.cfg.generation)
        self.device = _device(device)
        self.cfg.generation.no_beamable_mm = True  # fconv would take the beam of all calls for granted
        self.model = self.models[0]
        if len(folders) > 1 and name == "translation_cmlmc":
            raise ValueError(f"{folders[0]} writes all words at a time: such models do not decode as one")
        for model in self.models:
            model.prepare_for_inference_(self.cfg)
            model.to(self.device)
            decoding_options.set_decode_dtype(self.task, model, config["weights"])
        self.lock = threading.Lock()
        generation = self.cfg.generation
        generator = self.task.build_generator(self.models, generation)
        self._own = PyTorchSearch(self, generator, nbest, generation, self.seed)
        self._others: dict[str, PyTorchSearch] = {}
        limit, _ = utils.resolve_max_positions(
            self.task.max_positions(), *(model.max_positions() for model in self.models)
        )
        tokens = LanguageTokens.of(config)
        self.max_pieces = limit - max(2, tokens.around_source if tokens else 0)  # two symbols may be added
        self.tags: list[str] = []
        if tokens is not None and name in PLAIN_TASKS:  # fairseq's multilingual tasks add tokens themselves
            self.tags = tokens.encoder_pieces([], *self.languages)[:-1]

    def search(self, options: Mapping[str, Any], languages: tuple[str, str]) -> PyTorchSearch:
        """The search with the options of a call, and the languages of the folder.

        Raises:
            ValueError: for an option outside its range, or which must be given when the model is loaded.
        """
        if languages != self.languages:
            raise ValueError(f"{' to '.join(languages)}, and not {' to '.join(self.languages)}: {ENGINE_ALONE}")
        if not options:
            return self._own
        key = repr(sorted(options.items()))
        with self.lock:
            if key not in self._others:
                search = self._new_search(options)
                if len(self._others) == MAX_SEARCHES:
                    del self._others[next(iter(self._others))]
                self._others[key] = search
            return self._others[key]

    def _new_search(self, options: Mapping[str, Any]) -> PyTorchSearch:
        name = self.name
        refuse_unknown(options, sorted(decoding_options.known(name)), "translate")
        if of_all := sorted(options.keys() - CallOptions.__annotations__.keys()):
            raise ValueError(
                f"{of_all[0]} cannot be given for one call: Translator({str(self.folder)!r}, {of_all[0]}=…)"
            )
        decoding_options.check(options, name)
        cfg, task = copy.deepcopy(self.cfg.generation), copy.copy(self.task)
        task.cfg = copy.deepcopy(task.cfg)
        for option, value in _of_fairseq(options).items():
            setattr(cfg if option in cfg else task.cfg, option, value)
        nbest = _nbest(cfg)
        generator = task.build_generator(self.models, cfg)
        for shared in SHARED & vars(generator).keys():
            setattr(generator, shared, getattr(self._own.generator, shared))
        return PyTorchSearch(self, generator, nbest, cfg, _seed({**self.options, **options}))


@dataclass(frozen=True)
class PyTorchSearch:
    """A generator of fairseq's interface, how many of its hypotheses are wanted, its options, and the seed of random
    numbers, from which each batch begins."""

    backend: PyTorchBackend
    generator: Any
    nbest: int
    options: DictConfig
    seed: int

    def __call__(self, sources: Sequence[str], given: Sequence[Given] = ()) -> list[list[Found]]:
        """At most ``nbest`` translations of each source, best first.

        Raises:
            ValueError: for a translation of which something is given.
        """
        if any(given):
            raise ValueError(f"--target-prefix: {ENGINE_ALONE}")
        return [
            [self._found(each, source.split()) for each in found[: self.nbest]]
            for source, found in zip(sources, self.hypotheses(sources), strict=True)
        ]

    @cached_property
    def translations(self) -> dict[str, str] | None:
        """See ``EngineSearch``."""
        return read_translations(self.options.replace_unk)

    def watched(self, source: str, given: Given, watch: Watch) -> list[Found]:
        return self([source], [given])[0]

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[Scored]:
        raise ValueError(f"scores of given translations: {ENGINE_ALONE}")

    def hypotheses(self, sources: Sequence[str]) -> list[list[dict[str, Any]]]:
        """The hypotheses of fairseq's generator for sentences, given as pieces, best first, with the tokens of their
        ``source``. Batches are of sentences of similar length."""
        if not sources:
            return []
        backend, task = self.backend, self.backend.task
        tokens = [
            torch.tensor(
                [*map(task.source_dictionary.index, [*backend.tags, *source.split()]), task.source_dictionary.eos()]
            )
            for source in sources
        ]
        lengths = [len(source) for source in tokens]
        dataset = task.build_dataset_for_inference(tokens, lengths)
        by_length, max_tokens = np.argsort(lengths, kind="stable"), max(backend.max_tokens, max(lengths) + 1)
        found: dict[int, list[dict[str, Any]]] = {}
        for rows in dataset.batch_by_size(by_length, max_tokens=max_tokens) if len(tokens) > 1 else [[0]]:
            batch = dataset.collater([dataset[row] for row in rows])
            with backend.lock, utils.set_torch_seed(self.seed):
                moved = utils.move_to_cuda(batch, backend.device) if backend.device.type == "cuda" else batch
                hypotheses = with_steps(task.inference_step(self.generator, backend.models, moved))
            for row, source, of_source in zip(
                batch["id"].tolist(), batch["net_input"]["src_tokens"].tolist(), hypotheses, strict=True
            ):
                read = [token for token in source if token != task.source_dictionary.pad()]
                found[row] = [{**hypothesis, "source": read} for hypothesis in of_source]
        return [found[row] for row in range(len(sources))]

    def _found(self, hypothesis: Mapping[str, Any], source: list[str]) -> Found:
        dictionary, tokens = self.backend.task.target_dictionary, hypothesis["tokens"].tolist()
        ends = getattr(self.generator, "symbols_to_strip_from_output", None)  # tokens of languages, too
        text = str(dictionary.string(tokens, None, False, ends))
        found = Found(text, score=float(hypothesis["score"]), calls=int(hypothesis["steps"]))
        if hypothesis["alignment"] is None or not len(hypothesis["alignment"]):
            if text and (self.translations is not None or self.options.print_alignment):
                option = "replace_unk" if self.translations is not None else "print_alignment"
                raise ValueError(
                    f"{option}: fairseq's search for {self.backend.name} has no alignments; {ENGINE_ALONE}"
                )
            return found
        symbols = {dictionary.bos(), dictionary.eos(), *(ends or ())}
        return self._aligned(found, hypothesis, source, [token not in symbols for token in tokens])

    def _aligned(self, found: Found, hypothesis: Mapping[str, Any], source: list[str], kept: list[bool]) -> Found:
        """With what the options say of a hypothesis' alignment, for those of its tokens that are kept."""
        dictionary, tokens = self.backend.task.target_dictionary, hypothesis["tokens"].tolist()
        places = [place for place, keep in enumerate(kept) if keep]
        read: list[int] = hypothesis["source"]
        rows: tuple[tuple[float, ...], ...] = ()
        own = [*map(self.backend.task.source_dictionary.index, source)]
        before = next(place for place in range(len(read)) if read[place : place + len(own)] == own)
        if self.options.print_alignment == "soft":
            of_tokens = ([*map(float, row)] for row in hypothesis["alignment"])
            rows = tuple(
                tuple(row[before : before + len(own)]) for row, keep in zip(of_tokens, kept, strict=True) if keep
            )
            alignment = tuple((row.index(max(row)), target) for target, row in enumerate(rows))
        else:
            sources, targets = (
                [place for place, token in enumerate(each) if token not in (dictionary.pad(), dictionary.eos())]
                for each in (read, tokens)
            )
            alignment = _renumbered(
                ((int(pair[0]), int(pair[1])) for pair in hypothesis["alignment"]),
                {word: place - before for word, place in enumerate(sources) if 0 <= place - before < len(own)},
                {word: places.index(place) for word, place in enumerate(targets) if place in places},
            )
        if self.translations is not None:
            pieces = replaced(found.pieces.split(), source, alignment, self.translations)
            found = replace(found, pieces=" ".join(pieces))
        shown = alignment if self.options.print_alignment == "hard" else ()
        return replace(found, alignment=shown, attention=rows)


def _renumbered(
    alignment: Iterable[tuple[int, int]], sources: Mapping[int, int], targets: Mapping[int, int]
) -> tuple[tuple[int, int], ...]:
    """The pairs of an alignment by other numbers, without those that have none."""
    return tuple(
        (sources[source], targets[target]) for source, target in alignment if source in sources and target in targets
    )


def _of_fairseq(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that fairseq has.

    Raises:
        ValueError: for those that the engine alone has.
    """
    for name in sorted(decoding_options.OWN - {"seed"}):
        if options.get(name):
            raise ValueError(f"{name}={options[name]!r}: {ENGINE_ALONE}")
    return {name: value for name, value in options.items() if name not in decoding_options.OWN}


def _seed(options: Mapping[str, Any]) -> int:
    """The seed of decoding options.

    Raises:
        ValueError: for one without anything that is random.
    """
    if "seed" in options and not (options.get("sampling") or options.get("retain_dropout")):
        raise ValueError(f"--seed {options['seed']} needs --sampling")
    return int(options.get("seed", SEED))


def _nbest(generation: DictConfig) -> int:
    """The number of hypotheses that are asked for.

    Raises:
        ValueError: for more than the beam finds.
    """
    beam, nbest = generation.beam, generation.nbest
    check_counts(beam=beam, nbest=nbest)
    if nbest > beam:
        raise ValueError(f"nbest={nbest} is more than beam={beam} finds: raise beam, or lower nbest")
    return int(nbest)


def _device(name: str) -> torch.device:
    try:
        torch.empty(0, device=name).tolist()
    except (AssertionError, RuntimeError) as error:
        raise ValueError(f"device={name!r} cannot be used: {str(error).splitlines()[0]}") from None
    return torch.device(name)
