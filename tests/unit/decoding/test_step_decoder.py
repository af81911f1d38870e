"""Decoding steps against the model's full forward, and their search against a search over fairseq's steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import graph_emulator
import pytest
import tolerance
import torch
import toy

from amlp_fairseq.attention.registry import supporting
from amlp_fairseq.decoding import step_decoder
from amlp_fairseq.decoding.inference_model import InferenceModel
from amlp_fairseq.decoding.step_decoder import INITIAL_SLOTS, Decoding, StepDecoder
from amlp_fairseq.models.average_attention import AANTransformerConfig, AANTransformerModel
from amlp_fairseq.models.light_conv import DynamicConvConfig, DynamicConvModel, LightConvConfig, LightConvModel
from amlp_fairseq.models.plugin_transformer import PluginTransformerConfig, PluginTransformerModel
from amlp_fairseq.search.multiword_beam_search import MultiwordBeamSearch
from amlp_fairseq.search.options import SearchOptions

PATTERNS = [(1, 1), (1, 3), (2, 0), (2, 1), (2, 2), (4, 1), (4, 2)]
EOS = 2
MASKS = ("vanilla", "independent-directions")
Model = Callable[[Any], Any]


def ibdecoder(**options: Any) -> Model:
    return lambda task: toy.model(task, **options)


def left_to_right(model: type, config: type, **options: Any) -> Model:
    return lambda task: toy.left_to_right(task, model, config, **options)


KERNELS = {"encoder_kernel_size_list": [3], "decoder_kernel_size_list": [3, 7]}
MODELS: dict[str, tuple[tuple[int, int], Model]] = {
    **{f"ibdecoder {h}-{c}": ((h, c), ibdecoder()) for h, c in PATTERNS},
    **{
        f"ibdecoder 2-2 {name}": ((2, 2), ibdecoder(decoder_self_attention_type=name, **KERNELS))
        for name in supporting("causal self")
        if name not in ("softmax", "cnn")
    },
    **{
        f"cross {name}": ((1, 1), ibdecoder(decoder_cross_attention_type=name, **KERNELS))
        for name in supporting("causal cross")
        if name != "softmax"
    },
    **{f"mask {name}": ((2, 2), ibdecoder(decoder_attention_mask=name)) for name in MASKS},
    "norms in front": ((2, 1), ibdecoder(decoder_normalize_before=True, activation_fn="gelu")),
    "vanilla positions": ((2, 2), ibdecoder(decoder_word_positions="vanilla")),
    "plugin_transformer": ((1, 1), left_to_right(PluginTransformerModel, PluginTransformerConfig)),
    "cnn": (
        (1, 1),
        left_to_right(PluginTransformerModel, PluginTransformerConfig, decoder_self_attention_type="cnn", **KERNELS),
    ),
    "aan_transformer": ((1, 1), left_to_right(AANTransformerModel, AANTransformerConfig)),
    "triton_lightconv": ((1, 1), left_to_right(LightConvModel, LightConvConfig, **KERNELS)),
    "triton_dynamicconv": ((1, 1), left_to_right(DynamicConvModel, DynamicConvConfig, **KERNELS)),
}  # fmt: skip
of_every_model = pytest.mark.parametrize("name", MODELS)


def build(name: str) -> tuple[Any, Any]:
    (h, c), model = MODELS[name]
    task = toy.task(12, num_directions=h, words_per_direction=c)
    return task, model(task)


def sources(task: Any, count: int, seed: int = 0) -> dict[str, Any]:
    return toy.batch(toy.random_sources(count, 12, seed), task.src_dict)["net_input"]


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("name", ["ibdecoder 1-1", "ibdecoder 2-2", "plugin_transformer"])
def test_inputs_are_words_and_positions_without_start_symbols(name: str) -> None:
    (directions, words_per_direction), build = MODELS[name]
    z = directions * words_per_direction
    decoder = StepDecoder(
        build(toy.task(num_directions=directions, words_per_direction=words_per_direction)).decoder, None
    )
    words = torch.tensor([[4, 6, 8, 5], [7, 4, 4, 9], [5, 6, 7, 8]])[:, 4 - z :]
    table, starts = decoder.decoder.embed_tokens.weight.double(), 0 if name == "plugin_transformer" else z
    assert starts == 0 or table[EOS].abs().max() > 0
    for slots in (decoder.slots[:z], decoder.slots[z : 2 * z], torch.tensor([[0], [z], [3 * z]]) + decoder.slots[:z]):
        embedded = decoder.decoder.embed_scale * table[words] * (slots >= starts).unsqueeze(-1)
        expected = embedded + decoder.encodings.double()[slots]
        torch.testing.assert_close(
            decoder.embed(words, slots).double(), expected.expand(3, z, -1), atol=1e-6, rtol=1e-6
        )
    for beyond in (-1, len(table)):
        with pytest.raises((IndexError, RuntimeError)):
            decoder.embed(torch.full_like(words, beyond), decoder.slots[z : 2 * z])


@of_every_model
@torch.no_grad()
def test_steps_are_the_full_forward_whatever_rows_go_on(name: str) -> None:
    """Logits and attention are right when rows branch, sentences end and buffers grow."""
    task, model = build(name)
    z, beam, generator = task.order.words_per_step, 3, torch.Generator().manual_seed(2)
    net_input = sources(task, 3)
    run = InferenceModel(model, None).begin(**net_input, beam=beam)
    assert isinstance(run, Decoding)
    sentences = torch.arange(3).repeat_interleave(beam)
    tokens = torch.full((len(sentences), z), EOS)
    for step in range((INITIAL_SLOTS + 8) // z):
        logits, attention = run.step(tokens[:, -z:], need_attention=True)
        if step in (0, 1, 2, 5, INITIAL_SLOTS // z, INITIAL_SLOTS // z + 1):
            encoder_out = model.encoder(**net_input)
            rows = model.encoder.reorder_encoder_out(encoder_out, sentences)
            expected, extra = model.decoder(tokens, encoder_out=rows)
            torch.testing.assert_close(logits, expected[:, -z:], atol=1e-4, rtol=1e-4)
            if extra["attn"][0] is not None:
                torch.testing.assert_close(attention, extra["attn"][0][:, -z:], atol=1e-5, rtol=1e-4)
        left = torch.arange(len(tokens) // beam)
        if step in (3, 6):
            left = left[torch.randperm(len(left), generator=generator)[1:]]
        rows = (left.unsqueeze(1) * beam + torch.randint(beam, (len(left), beam), generator=generator)).flatten()
        run.reorder(rows)
        tokens, sentences = tokens[rows], sentences[rows]
        tokens = torch.cat([tokens, torch.randint(4, 16, (len(tokens), z), generator=generator)], dim=1)


@of_every_model
@torch.no_grad()
def test_fast_sessions_captured_ones_and_the_models_own_steps_are_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One protocol with three users. Rows branch, sentences end, and the buffers of all grow."""
    graph_emulator.install(monkeypatch)
    task, model = build(name)
    z, beam, generator = task.order.words_per_step, 2, torch.Generator().manual_seed(5)
    net_input = sources(task, 3)
    sessions = {
        "fast": InferenceModel(model, None).begin(**net_input, beam=beam),
        "captured": InferenceModel(model, None, cuda_graphs=True).begin(**net_input, beam=beam),
    }
    with monkeypatch.context() as patches:
        patches.setattr(StepDecoder, "supports", lambda decoder: False)
        sessions["own"] = InferenceModel(model, None).begin(**net_input, beam=beam)
    assert len({type(session) for session in sessions.values()}) == 3
    words = torch.full((3 * beam, z), EOS)
    for step in range(36 // z):
        logits = {key: session.step(words)[0].clone() for key, session in sessions.items()}
        for key in ("captured", "own"):
            torch.testing.assert_close(logits[key], logits["fast"], atol=1e-4, rtol=1e-4)
        left = torch.arange(len(words) // beam)
        if step == 4:
            left = left[[2, 0]]
        rows = (left.unsqueeze(1) * beam + torch.randint(beam, (len(left), beam), generator=generator)).flatten()
        for session in sessions.values():
            session.reorder(rows)
        words = torch.randint(4, 16, (len(rows), z), generator=generator)


@pytest.mark.parametrize(("name", "beam"), [(name, (4, 1)[number % 3 == 2]) for number, name in enumerate(MODELS)])
def test_the_search_finds_what_it_finds_over_the_models_own_steps(
    name: str, beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, model = build(name)
    sample = {"net_input": sources(task, 6, seed=3)}

    def found() -> list[list[dict[str, Any]]]:
        alignment = None if name.startswith("cross") else "hard"
        options = SearchOptions(beam_size=beam, max_len_b=20, alignment=alignment)
        search = MultiwordBeamSearch([model], task.tgt_dict, task.order, options)
        return search.generate([model], sample)

    assert StepDecoder.supports(model.decoder)
    searched = found()
    monkeypatch.setattr(StepDecoder, "supports", lambda decoder: False)
    for ours, plain in zip(searched, found(), strict=True):
        assert [each["tokens"].tolist() for each in ours] == [each["tokens"].tolist() for each in plain]
        for mine, other in zip(ours, plain, strict=True):
            torch.testing.assert_close(
                mine["positional_scores"], other["positional_scores"], atol=tolerance.of_scores(), rtol=0
            )
            assert mine["steps"] == other["steps"]
            assert list(mine["alignment"]) == list(other["alignment"])


def test_a_model_in_training_is_searched_with_its_weights_of_now() -> None:
    task, model = build("ibdecoder 2-1")
    search = MultiwordBeamSearch([model], task.tgt_dict, task.order, SearchOptions(beam_size=2, max_len_b=9))
    sample = {"net_input": sources(task, 2)}
    scores = []
    for final in (False, False, True):
        model._is_generation_fast = final
        scores.append(float(search.generate([model], sample)[0][0]["score"]))
        fresh = MultiwordBeamSearch([model], task.tgt_dict, task.order, SearchOptions(beam_size=2, max_len_b=9))
        assert scores[-1] == float(fresh.generate([model], sample)[0][0]["score"])
        for parameter in model.parameters():
            parameter.data.mul_(1.5)  # not counted by autograd, like an optimizer's step
    assert len(set(scores)) == 3


@pytest.mark.parametrize("final", [False, True])
def test_gradients_pass_after_a_search(final: bool) -> None:
    """A model can be trained after a search, as with --eval-bleu."""
    task, model = build("ibdecoder 2-1")
    model._is_generation_fast = final
    options = SearchOptions(beam_size=2, max_len_b=60, min_len=17)
    search = MultiwordBeamSearch([model], task.tgt_dict, task.order, options)
    length = len(search.generate([model], {"net_input": sources(task, 1)})[0][0]["tokens"])
    logits, _ = model.train()(**sources(task, 1), prev_output_tokens=torch.full((1, length + length % 2), 5))
    task.order.recover(logits[0, : length - 1]).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_alignments_need_weights() -> None:
    task, model = build("cross linear")
    search = MultiwordBeamSearch([model], task.tgt_dict, task.order, SearchOptions(alignment="hard"))
    with pytest.raises(ValueError, match="--print-alignment: the cross-attention of InterleavedDecoder has no weights"):
        search.generate([model], {"net_input": sources(task, 1)})


def test_decoders_that_are_run_as_they_are() -> None:
    task = toy.task(num_directions=1)
    stock = toy.stock_transformer(task)
    assert not StepDecoder.supports(stock.decoder)
    with pytest.raises(
        ValueError, match="--decode-dtype int8 is for decoders of amlp_fairseq without --retain-dropout"
    ):
        InferenceModel(stock, "int8")
    model = toy.model(task)
    for part in model.decoder.modules():
        part.apply_during_inference = True  # as --retain-dropout does
    assert not StepDecoder.supports(model.decoder)


@pytest.mark.parametrize(("decode_dtype", "tolerance"), [("bfloat16", 0.05), ("int8", 0.1)])
@torch.no_grad()
def test_other_types_stay_near(decode_dtype: str, tolerance: float) -> None:
    task, model = build("ibdecoder 2-2")
    tokens, net_input = torch.full((2, 4), EOS), sources(task, 2)
    logits, _ = InferenceModel(model, decode_dtype).begin(**net_input, beam=1).step(tokens)
    expected = model(**net_input, prev_output_tokens=tokens)[0]
    assert 0 < (logits - expected).abs().max() < tolerance * expected.abs().max()


@pytest.mark.parametrize(("name", "expected"), [("plugin_transformer", 2), ("norms in front", 0)])
def test_what_reads_a_relu_is_told(name: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []
    monkeypatch.setattr(step_decoder, "pack", lambda *_, nonnegative=False, **__: told.append(nonnegative))
    StepDecoder(build(name)[1].decoder, "int8")
    assert sum(told) == expected


@pytest.mark.parametrize("name", ["plugin_transformer", "ibdecoder 2-1", "ibdecoder 2-2"])
def test_int8_sentences_do_not_depend_on_the_batch(name: str) -> None:
    task, model = build(name)

    def found(rows: list[list[int]]) -> list[list[dict[str, Any]]]:
        options = SearchOptions(beam_size=3, max_len_b=12, decode_dtype="int8")
        search = MultiwordBeamSearch([model], task.tgt_dict, task.order, options)
        return search.generate([model], toy.batch(rows, task.src_dict))

    several = toy.random_sources(7, 12, seed=5)
    as_long = [(words * 6)[:6] for words in several]
    # Last bits of attention depend on the position in the batch; with padding they may change the int8 value of an
    # activation.
    for rows, atol in ((as_long, 1e-6), (several, 0.01)):
        batch, backwards = found(rows), found(rows[::-1])[::-1]
        for row, together, reversed_ in zip(rows, batch, backwards, strict=True):
            (alone,) = found([row])
            for one, *others in zip(alone, together, reversed_, strict=True):
                for other in others:
                    assert one["tokens"].tolist() == other["tokens"].tolist()
                    torch.testing.assert_close(one["positional_scores"], other["positional_scores"], atol=atol, rtol=0)
