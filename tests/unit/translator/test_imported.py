"""Models that stock fairseq has trained, packaged: the words and scores of fairseq's own search, whatever the
architecture and the form of the checkpoint; a line where a folder of them would be garbage."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
from fairseq import checkpoint_utils, utils

from amlp_fairseq import Translator
from amlp_fairseq.cli.package import ensemble, is_ensemble, package
from amlp_fairseq.compat import trainer
from amlp_fairseq.engine.description import KEY
from amlp_fairseq.model_folder.config import read_config
from amlp_fairseq.model_folder.language_tokens import LanguageTokens
from amlp_fairseq.models.of_fairseq import plugin_options

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of hydra
PAIR = ["--task", "translation", "-s", "en", "-t", "de"]
TRANSFORMER = [*PAIR, *stock.SIZES, "--arch", "transformer"]
DECODING = ["--beam", "3", "--max-len-b", "12"]
SOURCES = stock.sentences(4)
Expected = list[list[tuple[str, float]]]


def packaged(checkpoint: Path, decoding: Sequence[str] = DECODING, **given: Any) -> Path:
    out = checkpoint.with_suffix("") if checkpoint.is_file() else checkpoint.with_name("again")
    package(stock.package_arguments(checkpoint, out, **given), [*decoding])
    return out


def found(folder: Path, backend: Any, nbest: int = 3) -> Expected:
    translator = Translator(folder, backend=backend, nbest=nbest, split_sentences=False)
    return [[(each.text, each.score), *each.alternatives] for each in translator.translations(SOURCES)]


def assert_same(found: Expected, expected: Expected) -> None:
    """The same words; scores as far as float32 sums of a few hundred terms agree."""
    assert [[text for text, _ in each] for each in found] == [[text for text, _ in each] for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert [score for _, score in one] == pytest.approx([score for _, score in other], abs=1e-4)


def of_stock(data: Path, words: Sequence[str]) -> Expected:
    _, task, model = stock.build(data, *words)
    return stock.translations(task, model, SOURCES, {})


KERNELS = "--encoder-kernel-size-list [3,3] --decoder-kernel-size-list [3,3]"
RECURRENT = "--encoder-hidden-size 16 --decoder-hidden-size 16 --decoder-out-embed-dim 16"
CONVOLUTIONAL = "--encoder-layers [(16,3)] --decoder-layers [(16,3)] --decoder-out-embed-dim 16"
WIDTHS = "--encoder-embed-dim 16 --decoder-embed-dim 16"
#: Architectures by what they are about, and whether the engine decodes them.
ARCHITECTURES = {
    "post-norm": ("transformer", "", True),
    "pre-norm": ("transformer", "--encoder-normalize-before --decoder-normalize-before --no-decoder-final-norm", True),
    "learned positions": ("transformer", "--encoder-learned-pos --decoder-learned-pos --layernorm-embedding", True),
    "no scale": ("transformer", "--no-scale-embedding --share-decoder-input-output-embed --activation-fn gelu", True),
    "shared": ("transformer", "--share-all-embeddings --activation-fn gelu_fast", True),
    "tanh": ("transformer", "--activation-fn tanh --decoder-learned-pos", True),
    "linear": ("transformer", "--activation-fn linear --no-token-positional-embeddings", True),
    "gelu_accurate": ("transformer", "--activation-fn gelu_accurate --relu-dropout 0.1", True),
    "widths": ("transformer", "--encoder-embed-dim 24 --encoder-layers 3 --decoder-ffn-embed-dim 40", True),
    "output dimension": ("transformer", "--decoder-output-dim 12", False),
    "LayerDrop": ("transformer", "--encoder-layerdrop 0.2 --decoder-layerdrop 0.2", True),
    "quantisation noise": ("transformer", "--quant-noise-pq 0.1", False),
    "cross-self-attention": ("transformer", "--cross-self-attention", False),
    "merged dictionaries": ("transformer", "--merge-src-tgt-embed", True),
    "checkpointed": ("transformer", "--checkpoint-activations", True),
    "big_align": ("transformer_wmt_en_de_big_align", "", False),
    "big_t2t": ("transformer_wmt_en_de_big_t2t", "", True),
    "bart": ("bart_large", "", True),
    "mbart": ("mbart_large", "", True),
    "lightconv": ("lightconv", f"--encoder-conv-type lightweight --decoder-conv-type lightweight {KERNELS}", False),
    "dynamicconv": ("lightconv", f"--encoder-conv-type dynamic --decoder-conv-type dynamic {KERNELS}", False),
    "fconv": ("fconv", f"{WIDTHS} {CONVOLUTIONAL}", False),
    "lstm": ("lstm", f"{WIDTHS} {RECURRENT}", False),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_writes_stocks_words(name: str, tmp_path: Path) -> None:
    arch, more, in_engine = ARCHITECTURES[name]
    words = [*PAIR, *(() if arch in ("lstm", "fconv") else stock.SIZES), "--arch", arch, *more.split()]
    data = stock.data(tmp_path, "en", "de")
    if name == "merged dictionaries":
        stock.data(tmp_path, "de", words=["w3", "w1", "x1", "x2"])
    folder, expected = packaged(stock.checkpoint(data, *words)), of_stock(data, words)
    assert len({text for each in expected for text, _ in each}) > 2
    assert_same(found(folder, "pytorch"), expected)
    assert ("unsupported" not in read_config(folder)[KEY] and not Translator(folder).why_pytorch) is in_engine
    if in_engine:
        assert_same(found(folder, "engine"), expected)


def test_logits_of_a_transformer_in_every_weight(tmp_path: Path) -> None:
    """Bit by bit those of stock's own class."""
    words = [*TRANSFORMER, "--encoder-normalize-before", "--share-all-embeddings", "--activation-fn", "gelu"]
    _, task, model = stock.build(stock.data(tmp_path), *words)
    options = plugin_options(model)
    assert options is not None
    cfg = argparse.Namespace(**options)
    own = task.build_model(cfg, from_checkpoint=True).eval()
    own.load_state_dict(model.state_dict(), model_cfg=cfg)
    source, target = torch.tensor([[5, 6, 7, 2], [1, 9, 8, 2]]), torch.tensor([[2, 4, 5], [2, 6, 7]])
    lengths = torch.tensor([4, 3])
    torch.testing.assert_close(own(source, lengths, target)[0], model(source, lengths, target)[0], rtol=0, atol=1e-6)


NAT = "--noise full_mask --share-all-embeddings --apply-bert-init --decoder-learned-pos --encoder-learned-pos".split()
LENGTHS = ["--pred-length-offset", "--length-loss-factor", "0.1"]


@pytest.mark.parametrize(
    ("arch", "more"),
    [
        ("cmlm_transformer", LENGTHS),
        ("nonautoregressive_transformer", LENGTHS),
        ("iterative_nonautoregressive_transformer", LENGTHS),
        ("levenshtein_transformer", []),
        ("insertion_transformer", []),
    ],
)
def test_models_of_translation_lev_run_as_they_are(arch: str, more: list[str], tmp_path: Path) -> None:
    words = ["--task", "translation_lev", *PAIR[2:], *stock.SIZES, "--arch", arch, *NAT, *more]
    data = stock.data(tmp_path)
    folder = packaged(stock.checkpoint(data, *words), ["--iter-decode-max-iter", "3"])
    _, task, model = stock.build(data, *words)
    search = {"iter_decode_max_iter": 3, "iter_decode_eos_penalty": 0.0, "iter_decode_with_beam": 1}
    search |= dict.fromkeys(("iter_decode_force_max_iter", "retain_iter_history"), False)
    expected = stock.translations(task, model, SOURCES, search)
    assert [[text for text, _ in each] for each in found(folder, None, 1)] == [[each[0][0]] for each in expected]


LANGUAGES = ["--langs", "de,en,fr", "--lang-pairs", "en-de,en-fr,de-fr"]
SIMPLE, MULTI = "translation_multi_simple_epoch", "multilingual_translation"
#: Tasks and options of multilingual models, and where their tokens stand.
MULTILINGUAL: dict[str, tuple[str, str, tuple[list[str], list[str], str] | None]] = {
    "M2M-100": (
        SIMPLE,
        "--arch transformer --share-all-embeddings --encoder-langtok src --decoder-langtok",
        (["__{source}__", "{words}", "</s>"], ["</s>", "__{target}__"], "</s>"),
    ),
    "mBART-50": (
        SIMPLE,
        "--arch mbart_large --encoder-langtok src --decoder-langtok --lang-tok-style mbart",
        (["[{source}]", "{words}", "</s>"], ["</s>", "[{target}]"], "</s>"),
    ),
    "source says the target": (
        SIMPLE,
        "--arch transformer --encoder-langtok tgt",
        (["__{target}__", "{words}", "</s>"], ["</s>"], "</s>"),
    ),
    "in place of the ends": (
        SIMPLE,
        "--arch transformer --encoder-langtok src --decoder-langtok --lang-tok-replacing-bos-eos",
        (["{words}", "__{source}__"], ["__{target}__"], "</s>"),
    ),
    "no tokens": (SIMPLE, "--arch transformer", None),
    "mBART": (
        "translation_from_pretrained_bart",
        "--arch mbart_large -s en -t de",
        (["{words}", "</s>", "[{source}]"], ["[{target}]"], "[{target}]"),
    ),
    "one model": (
        MULTI,
        "--arch multilingual_transformer --share-encoders --share-decoders --encoder-langtok tgt --decoder-langtok",
        (["{words}", "__{target}__"], ["__{target}__"], "</s>"),
    ),
    "a model of each pair": (MULTI, "--arch multilingual_transformer", None),
}


def multilingual(name: str, folder: Path) -> Path:
    """A checkpoint."""
    task_name, more, _ = MULTILINGUAL[name]
    languages = LANGUAGES[2:] if task_name == MULTI else LANGUAGES[: 2 if "bart" in task_name else None]
    data = stock.data(folder, "en", "de", "fr")
    return stock.checkpoint(data, "--task", task_name, *stock.SIZES, *languages, *more.split())


@pytest.mark.parametrize("name", MULTILINGUAL)
def test_multilingual_models(name: str, tmp_path: Path) -> None:
    checkpoint, tokens = multilingual(name, tmp_path), MULTILINGUAL[name][2]
    pair = {"source_lang": "en", "target_lang": "de"}
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], arg_overrides=dict(pair))
    expected = stock.translations(task, model.eval(), SOURCES, {})
    folder = packaged(checkpoint, **pair)
    assert_same(found(folder, "pytorch"), expected)
    again = packaged(folder)
    facts = LanguageTokens.of(read_config(again))
    assert_same(found(again, "pytorch"), expected)
    assert_same(found(folder, "engine"), expected)
    if tokens is None:
        assert facts is None
        return
    assert facts is not None
    assert ([*facts.source], [*facts.target], facts.end) == tokens
    assert sorted(facts.codes) == ["de", "en", "fr"]
    dictionary = (folder / "dict.de.txt").read_text("utf-8")
    pieces = [*facts.encoder_pieces(["w1"], "en", "fr"), *facts.decoder_pieces("en", "fr"), facts.end_piece("en", "fr")]
    assert all(piece == "</s>" or f"{piece} " in dictionary for piece in pieces)
    translator = Translator(folder, beam=3, nbest=3, max_len_b=12)
    for source, target in (("en", "fr"), ("de", "fr")) if name != "mBART" else ():
        pair = {"source_lang": source, "target_lang": target}
        (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], arg_overrides=dict(pair))
        others = translator.translations(SOURCES, **pair)
        expected = stock.translations(task, model.eval(), SOURCES, {})
        assert_same([[(each.text, each.score), *each.alternatives] for each in others], expected)
    for option, code in (("source_lang", "ef"), ("target_lang", "dd")):
        with pytest.raises(ValueError, match=f"^{option} {code}: .*the model has de, en, fr"):
            translator.translate(SOURCES, **{option: code})
    texts = translator.translate(SOURCES)
    scores = translator.score(SOURCES, texts)
    for each, one in zip(translator.translations(SOURCES), scores, strict=True):
        if each.calls == len(each.pieces) + len(facts.target):  # without tokens of languages among its words
            assert one.score == pytest.approx(each.score, abs=1e-4)
    begun = translator.translations(SOURCES, target_prefixes=["w3 w5 "] * len(SOURCES))
    assert all(each.text.startswith("w3 w5") for each in begun)
    first, *_, last = translator.stream(SOURCES[0], beam=1, nbest=1)
    assert last.translation is not None
    assert first.parts in [("", ""), (*last.translation.pieces[:1], "")]  # no tokens of languages


def test_an_ensemble_in_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``a.pt:b.pt``: stock's words with both, from the command line to a folder without the checkpoints."""
    paths = [stock.checkpoint(stock.data(tmp_path / name), *TRANSFORMER, seed=seed) for seed, name in enumerate("ab")]
    built = [stock.build(path.parent, *TRANSFORMER, seed=seed) for seed, path in enumerate(paths)]
    expected = stock.translations(built[0][1], [model for _, _, model in built], SOURCES, {})
    out = tmp_path / "ensemble"
    given = {"post_process": "none", "source_lang": "en", "target_lang": "de"}
    args = stock.package_arguments(Path(":".join(map(str, paths))), out, **given)
    assert is_ensemble(args.checkpoints)
    assert ensemble(args, DECODING) == "2 models that decode as one"
    for path in paths:
        path.unlink()
    assert_same(found(out, "engine"), expected)
    assert_same(found(out, "pytorch"), expected)
    assert sorted(path.name for path in out.iterdir()) == ["1", "2", "README.md", "config.json"]
    with pytest.raises(ValueError, match="exists already"):
        ensemble(args, DECODING)
    args.checkpoints, args.out = [Path(f"{out}/1:{tmp_path}/nowhere")], tmp_path / "other"
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ensemble(args, DECODING)
    assert not args.out.exists()


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    return stock.checkpoint(stock.data(tmp_path), *TRANSFORMER)


class AverageMeter:
    """As fairseq 0.6 kept it."""

    def __init__(self) -> None:
        self.val, self.avg, self.count = 0.5, torch.tensor(1.0), 3


def changed(path: Path, **entries: Any) -> Path:
    """The checkpoint with other entries, beside it; those that are None are removed."""
    state = torch.load(path, weights_only=True) | entries
    new = path.with_name("other.pt")
    torch.save({name: value for name, value in state.items() if value is not None}, new)
    return new


def edited(path: Path, section: str, **options: Any) -> Path:
    """The checkpoint with other options in a section of its configuration, or other weights."""
    state = torch.load(path, weights_only=True)
    part = state["model"] if section == "weights" else state["cfg"][section]
    (vars(part) if isinstance(part, argparse.Namespace) else part).update(options)
    new = path.with_name("other.pt")
    torch.save(state, new)
    return new


@pytest.mark.parametrize("form", ["args alone", "cfg alone", "no history", "numbers", "shards", "scalar noise"])
def test_forms_of_a_checkpoint(form: str, trained: Path) -> None:
    """Stripped, of older versions, of a training on ``a:b``: stock's words."""
    import numpy as np

    expected = of_stock(trained.parent, TRANSFORMER)
    of_training = dict.fromkeys(("optimizer_history", "extra_state", "task_state", "args"))
    checkpoint = {
        "args alone": lambda: changed(
            trained, **{**of_training, "cfg": None, "args": stock.args_of(trained.parent, *TRANSFORMER)}
        ),
        "cfg alone": lambda: changed(trained, **of_training),
        "no history": lambda: changed(trained, optimizer_history=[]),
        "numbers": lambda: changed(trained, extra_state={"a": np.float32(1), "b": np.float64(2), "n": np.int64(3)}),
        "shards": lambda: edited(trained, "task", data=f"{trained.parent}:{trained.parent}"),
        "scalar noise": lambda: edited(trained, "model", quant_noise_scalar=0.5, encoder_embed_path="/nowhere"),
    }[form]()  # fmt: skip
    assert_same(found(packaged(checkpoint), "engine"), expected)


def test_meters_of_old_versions_are_data(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fairseq.meters  # type: ignore[import-not-found]

    monkeypatch.setattr(AverageMeter, "__module__", "fairseq.meters")
    monkeypatch.setattr(fairseq.meters, "AverageMeter", AverageMeter)
    checkpoint = changed(trained, extra_state={"train_meters": {"loss": AverageMeter()}})
    state = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))
    assert vars(state["extra_state"]["train_meters"]["loss"])["count"] == 3


def test_the_published_layout(trained: Path, tmp_path: Path) -> None:
    """A checkpoint with its dictionaries beside it, filled up to a multiple of 8; or one dictionary for all."""
    words = [*stock.WORDS, *(f"madeupword{number:04d}" for number in range(8))]
    data = stock.data(tmp_path / "published", words=words)
    checkpoint = stock.checkpoint(data, *TRANSFORMER)
    expected = of_stock(data, TRANSFORMER)
    away = edited(checkpoint, "task", data="/nowhere", source_lang=None, target_lang=None)
    with pytest.raises(ValueError, match="--source-lang and --target-lang"):
        packaged(away)
    assert_same(found(packaged(away, source_lang="en", target_lang="de"), "engine"), expected)
    alone = shutil.copy(away, tmp_path / "alone.pt")
    one = shutil.move(data / "dict.en.txt", tmp_path / "dict.txt")
    with pytest.raises(FileNotFoundError, match=r"dict\.eng\.txt.*--data.*--fixed-dictionary"):
        packaged(alone, source_lang="eng", target_lang="deu")
    folder = packaged(alone, source_lang="eng", target_lang="deu", fixed_dictionary=one)
    assert read_config(folder)["languages"] == ["eng", "deu"]
    assert_same(found(folder, "engine"), expected)


@pytest.mark.parametrize(
    ("name", "pair", "message"),
    [
        ("mBART", ("en", "d"), r"--target-lang d: did you mean de\? the model has de, en, fr|en, de, fr"),
        ("M2M-100", ("xx", "de"), r"--source-lang xx: the model has de, en, fr"),
        ("a model of each pair", ("de", "en"), r"--source-lang de --target-lang en: the model has en-de, en-fr, de-fr"),
        ("M2M-100", (None, None), r"--source-lang and --target-lang"),
    ],
)
def test_languages_that_a_model_does_not_have(name: str, pair: Any, message: str, tmp_path: Path) -> None:
    checkpoint = multilingual(name, tmp_path)
    with pytest.raises(ValueError, match=message):
        packaged(checkpoint, source_lang=pair[0], target_lang=pair[1])


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("infinite", r"decoder\.layers\.0\.fc1\.weight has weights that are NaN or infinite"),
        ("experts", r"has mixtures of experts \(decoder\.layers\.0\.moe_layer"),
        ("parts", r"is one of the parts of a model"),
        ("adaptive", r"--adaptive-softmax-cutoff"),
        ("unknown", r"the architecture 'transformer_9x' of the checkpoint .*--user-dir"),
        ("unknown args", r"the architecture 'transformer_9x' of the checkpoint .*--user-dir"),
        ("nothing", r"neither 'args' nor 'cfg'"),
        ("turned round", r"--source-lang de --target-lang en: the checkpoint translates en to de"),
        ("no user directory", r"--user-dir .*nothing: there is no such folder"),
        ("broken user directory", r"--user-dir .*broken: its code fails: ModuleNotFoundError"),
    ],
)
def test_mistakes_are_a_line_and_leave_no_folder(mistake: str, message: str, trained: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {}
    if mistake == "infinite":
        weight = torch.load(trained, weights_only=True)["model"]["decoder.layers.0.fc1.weight"]
        weight[0, 0] = float("inf")
        trained = edited(trained, "weights", **{"decoder.layers.0.fc1.weight": weight})
    elif mistake == "experts":
        trained = edited(trained, "weights", **{"decoder.layers.0.moe_layer.experts.0.fc1.weight": torch.ones(2)})
    elif mistake == "parts":
        trained = changed(trained, fsdp_metadata={})
    elif mistake == "adaptive":
        trained = stock.checkpoint(trained.parent, *TRANSFORMER, "--adaptive-softmax-cutoff", "8,16")
    elif mistake == "unknown":
        trained = edited(trained, "model", _name="transformer_9x", arch="transformer_9x")
    elif mistake == "unknown args":
        args = stock.args_of(trained.parent, *TRANSFORMER)
        args.arch = "transformer_9x"
        trained = changed(trained, cfg=None, args=args)
    elif mistake == "nothing":
        trained = changed(trained, cfg=None, args=None)
    elif mistake == "turned round":
        given = {"source_lang": "de", "target_lang": "en"}
    else:
        given["user_dir"] = tmp_path / mistake.split()[0].replace("no", "nothing")
    if mistake.startswith("broken"):
        given["user_dir"].mkdir()
        (given["user_dir"] / "__init__.py").write_text("import there_is_no_such_library\n")
    with pytest.raises(ValueError, match=message):
        packaged(trained, **given)
    assert not trained.with_suffix("").exists()


TAGS = {"source_tags": "{target}", "langs": ["w1", "w2"], "source_lang": "w1", "target_lang": "w2"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"source_tags": "{source}"}, r"--source-tags TAGS and --langs CODE,… are given together"),
        ({"langs": ["w1", "w2"]}, r"--source-tags TAGS and --langs CODE,… are given together"),
        ({"source_tags": "{target}", "langs": ["w1"]}, r"--source-tags: name two of --langs"),
        (TAGS | {"target_lang": "w9"}, r"--target-lang w9: .*the model has w1, w2"),
        (TAGS | {"source_tags": "<{target}>"}, r"--source-tags, --langs: .*dict\.en\.txt has no entry '<w1>'"),
        (TAGS | {"source_tags": "{target"}, r"--source-tags, --langs: .*dict\.en\.txt has no entry '{target'"),
        ({"target_subword_model": Path("x")}, r"--target-subword-model x goes with --post-process"),
        ({"moses_no_dash_splits": True}, r"--moses-no-dash-splits goes with --tokenizer moses"),
    ],
)
def test_mistakes_in_tags_and_text(given: dict[str, Any], message: str, trained: Path) -> None:
    with pytest.raises(ValueError, match=message):
        packaged(trained, **given)
    assert not trained.with_suffix("").exists()


def test_tags_are_of_models_without_tokens(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"--source-tags: a model of translation_multi_simple_epoch has tokens of languages already"
    ):
        packaged(multilingual("M2M-100", tmp_path), fixed_dictionary=tmp_path / "dict.en.txt", **TAGS)


@pytest.mark.parametrize(("section", "option"), [("common", "seed"), ("checkpoint", "save_dir")])
def test_checkpoints_of_two_trainings_are_not_averaged(
    section: str, option: str, trained: Path, tmp_path: Path
) -> None:
    other = edited(trained, section, **{option: 7})
    args = stock.package_arguments(trained, tmp_path / "out")
    args.checkpoints = [trained, other]
    flag = f"--{option.replace('_', '-')}"
    with pytest.raises(ValueError, match=f"of two trainings \\({flag} .* and 7\\).*amlp-fairseq average"):
        package(args, [])
    shutil.copy(trained, other)
    package(args, DECODING)
    assert_same(found(tmp_path / "out", "engine"), of_stock(trained.parent, TRANSFORMER))


def test_embeddings_are_not_taken_for_those_of_other_words(trained: Path, tmp_path: Path) -> None:
    """By --finetune-from-model, in stock's task too, whose checkpoints do not say what their dictionaries are."""
    state = checkpoint_utils.load_checkpoint_to_cpu(str(trained))
    tasks = {
        name: stock.build(stock.data(tmp_path / name, words=words), *TRANSFORMER)[1]
        for name, words in {"same": stock.WORDS, "other": stock.WORDS[::-1], "larger": [*stock.WORDS, "x"]}.items()
    }
    for task in (tasks["same"], tasks["larger"]):  # whose embedding is new
        trainer.check_words(task, state, str(trained))
    with pytest.raises(ValueError, match=r"--finetune-from-model .*model\.pt: its source dictionary .*--srcdict"):
        trainer.check_words(tasks["other"], state, str(trained))
    checkpoint = argparse.Namespace(finetune_from_model=str(trained))
    called: Any = argparse.Namespace(
        get_model=lambda: None, task=tasks["other"], cfg=argparse.Namespace(checkpoint=checkpoint)
    )
    with pytest.raises(ValueError, match="other words than that of the data"):
        trainer.load_checkpoint(lambda *args, **kwargs: None, called, str(trained))


def test_nothing_says_the_words_of_embeddings(trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    alone = tmp_path / "elsewhere" / "model.pt"
    alone.parent.mkdir()
    shutil.copy(edited(trained, "task", data="/nowhere"), alone)
    task = stock.build(stock.data(tmp_path / "other", words=stock.WORDS[::-1]), *TRANSFORMER)[1]
    trainer.check_words(task, checkpoint_utils.load_checkpoint_to_cpu(str(alone)), str(alone))
    assert "nothing says of which words its embeddings are" in caplog.text


USER_DIR = """
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerDecoder, TransformerModel, base_architecture


@register_model_architecture("transformer", "transformer_4x")
def transformer_4x(args):
    for side in ("encoder", "decoder"):
        for name, size in {"embed_dim": 32, "ffn_embed_dim": 48, "layers": 3, "attention_heads": 4}.items():
            setattr(args, f"{side}_{name}", getattr(args, f"{side}_{name}", size))
        setattr(args, f"{side}_normalize_before", True)
    args.activation_fn = "gelu"
    base_architecture(args)


@register_model("named_transformer")
class Named(TransformerModel):
    pass


@register_model("doubled_transformer")
class Doubled(TransformerModel):
    def forward(self, *args, **kwargs):
        x, extra = super().forward(*args, **kwargs)
        return 2 * x, extra


class OwnDecoder(TransformerDecoder):
    pass


@register_model("layered_transformer")
class Layered(TransformerModel):
    @classmethod
    def build_decoder(cls, args, dictionary, embed_tokens):
        return OwnDecoder(args, dictionary, embed_tokens)


for name in ("named", "doubled", "layered"):
    register_model_architecture(f"{name}_transformer", f"{name}_4x")(transformer_4x)
"""


@pytest.fixture(scope="module")
def user_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("user") / "model_configs_of_a_test"
    folder.mkdir()
    (folder / "__init__.py").write_text("from . import custom\n")
    (folder / "custom.py").write_text(USER_DIR)
    return folder


@pytest.mark.parametrize("kind", ["transformer_4x", "named_4x", "args"])
def test_architectures_of_a_user_directory(kind: str, user_dir: Path, tmp_path: Path) -> None:
    """The folder does not need it."""
    utils.import_user_module(argparse.Namespace(user_dir=str(user_dir)))
    words = [*PAIR, "--arch", "transformer_4x" if kind == "args" else kind, "--user-dir", str(user_dir)]
    data = stock.data(tmp_path)
    checkpoint = stock.checkpoint(data, *words)
    if kind == "args":
        checkpoint = changed(checkpoint, cfg=None, args=stock.args_of(data, *words))
    folder = packaged(checkpoint, user_dir=user_dir)
    model = read_config(folder)["model"]
    assert (model["_name"], model["encoder_embed_dim"], model["activation_fn"]) == ("plugin_transformer", 32, "gelu")
    assert user_dir.name not in json.dumps(read_config(folder))
    assert_same(found(folder, "engine"), of_stock(data, words))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("doubled_4x", r"Doubled computes something else"),
        ("layered_4x", r"Layered .*layers of its own"),
    ],
)
def test_code_of_a_user_directory_is_not_dropped(kind: str, message: str, user_dir: Path, tmp_path: Path) -> None:
    utils.import_user_module(argparse.Namespace(user_dir=str(user_dir)))
    checkpoint = stock.checkpoint(stock.data(tmp_path), *PAIR, "--arch", kind, "--user-dir", str(user_dir))
    with pytest.raises(ValueError, match=message):
        packaged(checkpoint, user_dir=user_dir)
