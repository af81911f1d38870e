"""Options of a checkpoint are literals: none of fairseq's models, built with the plugin loaded, runs one of them."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import fairseq
import fairseq_cli
import pytest
import torch
import toy
from fairseq import checkpoint_utils, models, utils
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from hypothesis import given
from hypothesis import strategies as st

from amlp_fairseq.compat import literal_options
from amlp_fairseq.compat.literal_options import literal

PLUGIN = Path(literal_options.__file__).parents[1]

#: Calls that can run code, where fairseq makes them, and why no checkpoint reaches them. ``eval`` is for itself.
HARMLESS = {
    # modules of fairseq by the names of its own files
    ("fairseq.criterions", "importlib.import_module"): "its files",
    ("fairseq.data.audio", "importlib.import_module"): "its files",
    ("fairseq.data.encoders", "importlib.import_module"): "its files",
    ("fairseq.model_parallel.criterions", "importlib.import_module"): "its files",
    ("fairseq.model_parallel.models", "importlib.import_module"): "its files",
    ("fairseq.models", "importlib.import_module"): "its files",
    ("fairseq.models.ema", "importlib.import_module"): "its files",
    ("fairseq.models.huggingface", "importlib.import_module"): "its files",
    ("fairseq.optim", "importlib.import_module"): "its files",
    ("fairseq.optim.lr_scheduler", "importlib.import_module"): "its files",
    ("fairseq.scoring", "importlib.import_module"): "its files",
    ("fairseq.tasks", "importlib.import_module"): "its files",
    ("fairseq.optim.fused_adam", "importlib.import_module"): "a name that is written there",
    # the user's own --user-dir: of the command line, or an argument of from_pretrained
    ("fairseq.hub_utils", "utils.import_user_module"): "command line",
    ("fairseq.options", "utils.import_user_module"): "command line",
    ("fairseq.utils", "importlib.import_module"): "command line",
    **{
        (f"fairseq_cli.{name}", "utils.import_user_module"): "command line"
        for name in "eval_lm generate hydra_validate interactive preprocess train validate".split()
    },
    ("fairseq_cli.eval_lm", "eval"): "the user's own --model-overrides",
    ("fairseq_cli.validate", "eval"): "the user's own --model-overrides",
    ("fairseq.tasks.audio_pretraining", "subprocess.call"): "the user's own --post-save-script, of a training",
    # torch loads with weights_only, see compat/checkpoint_utils.py
    ("fairseq.checkpoint_utils", "torch.load"): "weights_only",
    ("fairseq.data.codedataset", "torch.load"): "weights_only",
    ("fairseq.distributed.utils", "torch.load"): "weights_only",
    ("fairseq.models.speech_to_text.xm_transformer", "torch.load"): "weights_only",
    ("fairseq.models.text_to_speech.vocoder", "torch.load"): "weights_only",
    ("fairseq.modules.quantization.pq.em", "torch.load"): "weights_only",
    # what training's own processes send each other, and ask the cluster
    ("fairseq.distributed.utils", "pickle.loads"): "own processes",
    ("fairseq.distributed.utils", "subprocess.check_output"): "own cluster",
    ("fairseq.data.plasma_utils", "subprocess.Popen"): "a fixed program",
    # PyYAML >= 6: FullLoader makes no objects
    ("fairseq.data.audio.data_cfg", "yaml.load"): "FullLoader",
    # made safe, see their tests in test_untrusted_input.py
    ("fairseq.data.fasta_dataset", "subprocess.check_output"): "quoted",
    ("fairseq.file_utils", "archive.extractall"): "filtered",
    # A speech model's YAML file names a model of torch.hub that speaks its output: the user asks for it
    # (synthesize_speech=True), and torch for confirmation of a repository that is not known yet.
    ("fairseq.models.speech_to_text.hub_interface", "torch.hub.load"): "torch.hub asks",
}
RUNS_CODE = re.compile(
    r"(?x) (builtins\.)? (eval|exec|compile|__import__) | os\.(system|popen|exec\w+|spawn\w+) | subprocess\.\w+"
    r"| .*\bimport_(module|user_module) | (pickle|dill|marshal|joblib)\.loads? | torch\.(jit\.|hub\.)?load"
    r"| .*extractall | yaml\.(load|load_all|full_load|unsafe_load) | np\.load\(.*allow_pickle.*"
    r"| .*\b(instantiate|register_new_resolver)"
)
#: What is in every file that has such a call; few others need to be parsed.
MAY_RUN_CODE = re.compile(
    r"eval\w*\(|exec|compile\(|__import__|os\.|subprocess|import_|pickle|dill|marshal|joblib|[^\w]load\w*\(|"
    r"extractall|_load|instantiate|resolver"
)


def modules(folder: Path) -> Iterator[tuple[str, ast.Module]]:
    """Names and sources of a package; ``fairseq/examples`` is none: programs that the user starts by name."""
    for path in sorted(folder.rglob("*.py")):
        parts, text = path.relative_to(folder.parent).with_suffix("").parts, path.read_text(encoding="utf-8")
        if parts[:2] != ("fairseq", "examples") and MAY_RUN_CODE.search(text):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of fairseq's own strings
                yield ".".join(parts).removesuffix(".__init__"), ast.parse(text)


def calls(tree: ast.Module) -> Iterator[ast.Call]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))


@functools.cache
def fairseq_modules() -> dict[str, ast.Module]:
    return dict([*modules(Path(fairseq.__file__).parent), *modules(Path(fairseq_cli.__file__).parent)])


def called(call: ast.Call) -> str:
    """The function as it is written, without the arguments: for ``np.load`` with them."""
    function = ast.unparse(call.func)
    return ast.unparse(call) if function == "np.load" else function


def test_every_call_that_can_run_code_is_known() -> None:
    """A fairseq with another one is noticed here."""
    found = {
        (module, called(call))
        for module, tree in fairseq_modules().items()
        for call in calls(tree)
        if RUNS_CODE.fullmatch(called(call))
    }
    evaluating = {module for module, function in found if function == "eval" and module.startswith("fairseq.")}
    assert evaluating == set(literal_options.MODULES)
    assert found - {(module, "eval") for module in evaluating} == HARMLESS.keys()


def test_eval_is_called_where_it_is_a_name() -> None:
    """Not passed on, nor taken from elsewhere, so that the module's own name is what is called."""
    for module in literal_options.MODULES:
        tree = fairseq_modules()[module]
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "eval"]
        assert names == [call.func for call in calls(tree) if ast.unparse(call.func) == "eval"]
        assert vars(sys.modules[module])["eval"] is literal


@functools.cache
def evaluated() -> set[str]:
    """The options that fairseq and the plugin evaluate, by the names of the attributes that are passed to it."""
    functions = {"eval", "eval_bool", "eval_str_list", "eval_str_dict"}
    return {
        call.args[0].attr if isinstance(call.args[0], ast.Attribute) else call.args[0].id
        for tree in [*fairseq_modules().values(), *dict(modules(PLUGIN)).values()]
        for call in calls(tree)
        if ast.unparse(call.func).split(".")[-1] in functions
        and call.args
        and isinstance(call.args[0], (ast.Attribute, ast.Name))
    }


#: What the task and the training give the models.
GIVEN = {
    **{"max_source_positions": 64, "max_target_positions": 64, "tokens_per_sample": 64, "max_positions": 64},
    **{"criterion": "cross_entropy", "fp16": False, "model_parallel_size": 1, "input_channels": 1, "w2v_path": None},
    **{"input_feat_per_channel": 80, "n_frames_per_step": 1, "target_speaker_embed": False, "speaker_embed_dim": 8},
    **{"pitch_min": 0, "pitch_max": 1, "energy_min": 0, "energy_max": 1, "tie_adaptive_weights": False},
    # Without values these are not looked at.
    **{"adaptive_softmax_cutoff": "4,8", "adaptive_input_cutoff": "4,8", "decoder_attention": "True"},
}


def options(arch: str) -> dict[str, Any]:
    """An architecture's options, with one layer where it is a number of them."""
    config = models.MODEL_DATACLASS_REGISTRY.get(models.ARCH_MODEL_NAME_REGISTRY[arch])
    if config is not None:
        declared = {field.name: getattr(config(), field.name) for field in dataclasses.fields(config)}
    else:
        parser = argparse.ArgumentParser(allow_abbrev=False, argument_default=argparse.SUPPRESS)
        models.ARCH_MODEL_REGISTRY[arch].add_args(parser)
        declared = vars(parser.parse_known_args([])[0])
    values = argparse.Namespace(**{**GIVEN, **{name: value for name, value in declared.items() if value is not None}})
    models.ARCH_CONFIG_REGISTRY.get(arch, lambda namespace: None)(values)
    result = {**declared, **vars(values), "arch": arch}
    for name, value in result.items():
        if name in ("encoder_layers", "decoder_layers"):
            result[name] = 1 if isinstance(value, int) else "[(8, 3)]"
        elif name.endswith("kernel_size_list") and isinstance(value, list):
            result[name] = value[:1]
    for name in ("encoder_embed_dim", "decoder_embed_dim") if "fconv" in arch else ():
        result[name] = 8
    return result


def build(values: dict[str, Any]) -> None:
    """The model in no memory, of a task that answers whatever it is asked."""
    task, words = mock.MagicMock(), toy.dictionary(20)
    task.source_dictionary = task.target_dictionary = task.dictionary = task.output_dictionary = words
    with torch.device("meta"):
        models.build_model(argparse.Namespace(**values), task)


Attacks = set[tuple[str, str]]


def attack_all(trace: Path, only: Attacks | None = None) -> tuple[Attacks, Attacks]:
    """Build every architecture with an expression for each option that it might evaluate, and with all at once.

    Returns:
        architectures and options of which the expression ran, and those that were refused.
    """
    attack = f"__import__('pathlib').Path({str(trace)!r}).touch()"
    ran, refused = set(), set()
    names = evaluated()
    for arch in models.ARCH_MODEL_REGISTRY:
        if only is not None and arch not in dict(only):
            continue
        own = options(arch)
        texts = {name: attack for name, value in own.items() if isinstance(value, (str, list)) and name != "arch"}
        for name in [*sorted(names & own.keys()), "all"]:
            if only is not None and (arch, name) not in only:
                continue
            values = {**own, **(texts if name == "all" else {name: attack})}
            values["character_embeddings"] = name == "character_filters"
            values["adaptive_input"] = name == "adaptive_input_cutoff"
            try:
                build(values)
            except Exception as error:
                if repr(attack) in str(error) and " is refused" in str(error):
                    refused.add((arch, name))
            if trace.exists():
                trace.unlink()
                ran.add((arch, name))
    return ran, refused


def test_no_architecture_evaluates_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran, refused = attack_all(tmp_path / "trace")
    assert ran == set()
    for module in literal_options.MODULES:
        monkeypatch.delattr(sys.modules[module], "eval")
    assert attack_all(tmp_path / "trace", only=refused) == (refused, set())  # without the fix all of them run
    assert len({models.ARCH_MODEL_NAME_REGISTRY[arch] for arch, _ in refused}) >= 25
    assert {name for _, name in refused} >= {
        *("adaptive_input_cutoff", "adaptive_softmax_cutoff", "character_filters", "conv_aggregator_layers"),
        *("conv_feature_layers", "decoder_attention", "decoder_layers", "downsample", "encoder_attention"),
        *("encoder_layers", "gated_attention", "pretrained", "project_input", "self_attention"),
    }


ADAPTIVE = {"adaptive_softmax_cutoff": "4,8", "adaptive_input": True, "adaptive_input_cutoff": "4,8"}


def language_model(folder: Path, arch: str, **changes: Any) -> Path:
    """A checkpoint of a random language model, of which then options are changed."""
    (folder / "dict.txt").write_text("".join(f"w{i} 1\n" for i in range(16)))
    values = {**options(arch), **ADAPTIVE, "decoder_embed_dim": 16, "decoder_input_dim": 16, "decoder_output_dim": 16}
    values.update(decoder_ffn_embed_dim=16, decoder_conv_dim=16, decoder_attention_heads=2, adaptive_softmax_factor=2)
    values.update(adaptive_input_factor=2, dropout=0.1, max_target_positions=64, tokens_per_sample=64)
    task = LanguageModelingConfig(data=str(folder), tokens_per_sample=64)
    model = models.build_model(argparse.Namespace(**values), LanguageModelingTask.setup_task(task))
    own = {name: value for name, value in vars(task).items() if not str(value).startswith("${")}
    cfg = {"model": argparse.Namespace(**{**values, **changes}), "task": {**own, "_name": "language_modeling"}}
    state = {
        **{"args": None, "cfg": cfg, "model": model.state_dict(), "extra_state": {"train_iterator": {"epoch": 1}}},
        "optimizer_history": [{"optimizer_name": "FairseqAdam", "lr_scheduler_state": {}, "num_updates": 1}],
    }
    torch.save(state, folder / "model.pt")
    return folder / "model.pt"


@pytest.mark.parametrize("option", ["adaptive_softmax_cutoff", "adaptive_input_cutoff"])
@pytest.mark.parametrize("arch", ["transformer_lm", "lightconv_lm", "triton_lightconv_lm", "triton_dynamicconv_lm"])
def test_a_language_model_with_code_in_an_option(
    arch: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = str(language_model(tmp_path, arch))
    ((model,), _, _) = checkpoint_utils.load_model_ensemble_and_task([genuine])
    assert list(model.decoder.adaptive_softmax.cutoff) == [4, 8, 20]

    trace = tmp_path / "trace"
    attack = f"[4, 8][:(open({str(trace)!r}, 'w').close() or 2)]"
    checkpoint = str(language_model(tmp_path, arch, **{option: attack}))
    with pytest.raises(ValueError, match=re.escape(f"{attack!r} is refused (") + ".* must be literals: numbers, "):
        checkpoint_utils.load_model_ensemble_and_task([checkpoint])
    assert not trace.exists()

    monkeypatch.delattr(utils, "eval")
    checkpoint_utils.load_model_ensemble_and_task([checkpoint])
    assert trace.exists()


literals = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1000, 1000)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
).map(repr)
numbers = st.recursive(
    (st.integers(-99, 99) | st.floats(-9, 9)).map(repr),
    lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from("+-*/"), inner) | inner.map("-({})".format),
    max_leaves=5,
)
lists = st.recursive(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=3).map(repr),
    lambda inner: (
        st.builds("({} + {})".format, inner, inner)
        | st.builds("({} * {})".format, inner, st.integers(-1, 4))
        | st.builds("({} * {})".format, st.integers(-1, 4), inner)
    ),
    max_leaves=4,
)


@given(literals | numbers | lists)
def test_literals_are_what_eval_gives(text: str) -> None:
    try:
        expected = eval(text)
    except ZeroDivisionError:
        with pytest.raises(ValueError, match="is refused"):
            literal(text)
    else:
        assert literal(text) == expected
        assert repr(literal(text)) == repr(expected)


@pytest.mark.parametrize(
    "text",
    [
        "[(512, 3)] * 4 + [(768, 3)] * 4",
        "[(512,10,5)] + [(512,3,2)] * 4 + [(512,2,2)] + [(512,2,2)]",
        *(
            "(0.9, 0.98)",
            " \t0.9, 0.98",
            "[True, False]*3",
            "True",
            "1e-3",
            "0.1,",
            "[]",
            "20000,60000",
            "-1",
            "'a' * 3",
        ),
        "{'num_chunks': 1, 'audio': '/a b/c.wav', 'hubert_km100': '1 2 3'}",
    ],
)
def test_values_that_fairseq_is_given(text: str) -> None:
    assert literal(text) == eval(text)


def test_architectures_have_the_same_defaults() -> None:
    found = 0
    for arch in models.ARCH_MODEL_REGISTRY:
        values = options(arch)
        for name in evaluated() & values.keys():
            if isinstance(values[name], str):
                assert literal(values[name]) == eval(values[name])
                found += name not in GIVEN
    assert found > 20


@pytest.mark.parametrize(
    "text",
    [
        *(
            "open('x')",
            "print",
            "[x for x in [1]]",
            "(lambda: 1)()",
            "().__class__",
            "f'{1}'",
            "[1][0]",
            "1 if 1 else 2",
        ),
        *("{**{}}", "[*[1]]", "(x := 1)", "1 or 2", "not 1", "1 < 2", "2 ** 10", "1 // 2", "7 % 2", "'%s' % 1", "~1"),
        *("[1] - [2]", "[1] + (2,)", "[1] * [2]", "{[1]: 2}", "1; 2", "1\n2", "import os", "", "1 / 0", "-'a'", "\0"),
        *("[0] * 10**10", "[0] * 10000000000", "10000000000 * 'a'", "[0] * 101 * 100", "([0] * 5000, [0] * 5001)"),
        *("(" * 100_000, "[" * 5_000 + "]" * 5_000, "-" * 100_000 + "1", "+".join(["1"] * 100_000), "9" * 5_000),
    ],
    ids=lambda text: repr(text[:20]),
)
def test_all_else_is_refused(text: str) -> None:
    shown = repr(text[:200] if len(text) <= 200 else f"{text[:200]}…")
    with pytest.raises(ValueError, match=f"^{re.escape(shown)} is refused .* must be literals: numbers, texts, "):
        literal(text)


def test_what_is_no_text_is_what_it_was() -> None:
    """``eval_bool`` takes the TypeError of ``eval`` for "has a default"."""
    assert utils.eval_bool(True) is False
    assert utils.eval_bool(False, default=True) is True
    assert utils.eval_bool("True") is True
    assert utils.eval_str_list([4, 8.0], type=int) == [4, 8]
    assert utils.eval_str_list(3) == [3.0]
    assert utils.eval_str_list("3, 4", type=int) == [3, 4]
    assert utils.eval_str_dict("{'a': 1}") == {"a": 1}


def test_optimizers_evaluate_no_code(tmp_path: Path) -> None:
    parameters = [torch.nn.Parameter(torch.ones(1))]
    config = FairseqAdamConfig(adam_betas="(0.9, 0.98)", lr=[0.1])
    assert FairseqAdam(config, parameters).optimizer_config["betas"] == (0.9, 0.98)
    config.adam_betas = f"open({str(tmp_path / 'trace')!r}, 'w')"
    with pytest.raises(ValueError, match=re.escape(f"{config.adam_betas!r} is refused")):
        FairseqAdam(config, parameters)
    assert not (tmp_path / "trace").exists()
