"""The decoder: what it sees, incremental equals full, positions, and checkpoints that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import toy

from amlp_fairseq.decoding.inference_model import InferenceModel
from amlp_fairseq.models.signed_positions import SignedSinusoidalPositionalEmbedding
from amlp_fairseq.ops.generation_order import ATTENTION_MASKS, attention_mask

pytestmark = pytest.mark.usefixtures("float64")

PATTERNS = [(1, 1), (1, 3), (2, 0), (2, 1), (2, 2), (4, 1), (4, 2)]
#: Without the one that takes turns between directions that do not see each other.
MASKED = [(h, c, mask) for h, c in PATTERNS for mask in ATTENTION_MASKS if c or mask != "independent-directions"]
BATCH = 3


def build(h: int, c: int, **options: Any) -> tuple[Any, Any]:
    task = toy.task(num_directions=h, words_per_direction=c)
    return task, toy.model(task, **options)


def inputs(task: Any, steps: int, seed: int = 3) -> tuple[torch.Tensor, dict]:
    """Random words after the start symbols, (BATCH, steps·z), and a source batch."""
    z = task.order.words_per_step
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(4, 16, (BATCH, (steps - 1) * z), generator=generator)
    tokens = torch.cat([torch.full((BATCH, z), task.tgt_dict.eos()), words], dim=1)
    return tokens, toy.batch(toy.random_sources(BATCH, 12, seed), task.src_dict)["net_input"]


@pytest.mark.parametrize(
    ("h", "c", "mask", "chunks"),
    [(*masked, ([1, 1, 1, 1, 1], [2, 3], [1, 3, 1])[number % 3]) for number, masked in enumerate(MASKED)],
)
def test_incremental_equals_full(h: int, c: int, mask: str, chunks: list[int]) -> None:
    task, model = build(h, c, decoder_attention_mask=mask)
    tokens, source = inputs(task, sum(chunks))
    encoder_out = model.encoder.forward_torchscript(source)
    full, _ = model.decoder(tokens, encoder_out=encoder_out)
    state: dict = {}
    z = h * c or 1
    parts = [
        model.decoder(tokens[:, : sum(chunks[: i + 1]) * z], encoder_out=encoder_out, incremental_state=state)[0]
        for i in range(len(chunks))
    ]
    torch.testing.assert_close(torch.cat(parts, dim=1), full)


@pytest.mark.parametrize("kind", ["dynamic_conv", "light_conv", "local"])
@pytest.mark.parametrize(("h", "c"), PATTERNS)
def test_incremental_equals_full_for_windows(h: int, c: int, kind: str) -> None:
    task, model = build(h, c, decoder_self_attention_type=kind, decoder_kernel_size_list=[3, 7])
    tokens, source = inputs(task, 6)
    encoder_out = model.encoder.forward_torchscript(source)
    full, _ = model.decoder(tokens, encoder_out=encoder_out)
    state: dict = {}
    z = h * c or 1
    parts = [model.decoder(tokens[:, : n * z], encoder_out=encoder_out, incremental_state=state)[0] for n in (1, 4, 6)]
    torch.testing.assert_close(torch.cat(parts, dim=1), full)


@pytest.mark.parametrize(("h", "c"), PATTERNS)
def test_convolution_sees_the_last_k_slots_to_the_end_of_the_step(h: int, c: int) -> None:
    task, model = build(
        h, c, decoder_self_attention_type="dynamic_conv", decoder_kernel_size_list=[5], decoder_layers=1
    )
    z = h * c or 1
    tokens, source = inputs(task, 4)
    seen: list[torch.Tensor] = []
    encoder_out = model.encoder.forward_torchscript(source)
    model.decoder.embed_tokens.register_forward_hook(lambda *call: seen.append(call[2]))
    logits, _ = model.decoder(tokens, encoder_out=encoder_out)
    direction = torch.randn(logits.size(-1), generator=torch.Generator().manual_seed(0))
    for i in range(4 * z):
        (gradient,) = torch.autograd.grad((logits[:, i] @ direction).sum(), seen[0], retain_graph=True)
        end = i // z * z + z - 1
        window = {j for j in range(z, 4 * z) if end - 5 < j <= end}  # the first z inputs are zeros
        own = {i} if i >= z else set()  # through the residual connection
        assert set(gradient.ne(0).flatten(2).any(dim=2).any(dim=0).nonzero().flatten().tolist()) == window | own


def test_masks_that_a_convolution_cannot_have_are_refused() -> None:
    for mask in set(ATTENTION_MASKS) - {"interleaved"}:
        with pytest.raises(ValueError, match=f"--decoder-attention-mask {mask} is for softmax, .*type light_conv"):
            build(
                2,
                1,
                decoder_self_attention_type="light_conv",
                decoder_kernel_size_list=[3],
                decoder_attention_mask=mask,
            )


def test_directions_that_take_turns_see_each_other() -> None:
    with pytest.raises(ValueError, match="independent-directions needs --words-per-direction of at least 1, not 0"):
        build(2, 0, decoder_attention_mask="independent-directions")


@pytest.mark.parametrize("kind", ["softmax", "dynamic_conv"])
@pytest.mark.parametrize(("h", "c"), PATTERNS)
def test_reordering_leaves_no_trace(h: int, c: int, kind: str) -> None:
    task, model = build(h, c, decoder_self_attention_type=kind, decoder_kernel_size_list=[3, 7])
    z = h * c or 1
    tokens, source = inputs(task, 4)
    encoder_out = model.encoder.forward_torchscript(source)
    state: dict = {}
    model.decoder(tokens[:, : 3 * z], encoder_out=encoder_out, incremental_state=state)
    order = torch.tensor([2, 0, 0, 1])
    model.decoder.reorder_incremental_state_scripting(state, order)
    encoder_out = model.encoder.reorder_encoder_out(encoder_out, order)
    last, _ = model.decoder(tokens[order], encoder_out=encoder_out, incremental_state=state)
    full, _ = model.decoder(tokens[order], encoder_out=encoder_out)
    torch.testing.assert_close(last, full[:, 3 * z :])


@pytest.mark.parametrize("length", [1, 3, 5])
def test_incremental_steps_must_be_whole(length: int) -> None:
    task, model = build(2, 1)
    _, source = inputs(task, 1)
    with pytest.raises(ValueError, match=f"whole steps of 2 slots.*not {length} slots"):
        model.decoder(
            torch.full((BATCH, length), 2), encoder_out=model.encoder.forward_torchscript(source), incremental_state={}
        )


@pytest.mark.parametrize(("h", "c", "mask"), MASKED)
def test_gradients_are_zero_exactly_where_the_mask_forbids(h: int, c: int, mask: str) -> None:
    task, model = build(h, c, decoder_attention_mask=mask, decoder_layers=1)
    z = h * c or 1
    tokens, source = inputs(task, 3)
    seen: list[torch.Tensor] = []
    model.decoder.embed_tokens.register_forward_hook(lambda *call: seen.append(call[2]))
    encoder_out = model.encoder.forward_torchscript(source)
    seen.clear()
    logits, _ = model.decoder(tokens, encoder_out=encoder_out)
    slots = torch.arange(3 * z)
    allowed = attention_mask(slots, slots, task.order, mask)
    direction = torch.randn(logits.size(-1), generator=torch.Generator().manual_seed(0))
    for i in range(3 * z):
        (gradient,) = torch.autograd.grad((logits[:, i] @ direction).sum(), seen[0], retain_graph=True)
        reached = gradient.ne(0).any(dim=2)  # (batch, slots)
        assert not reached[:, ~allowed[i]].any()
        assert reached[:, z:][:, allowed[i, z:]].all()  # the first z inputs are zeros whatever their token


def test_start_symbols_are_zero_vectors() -> None:
    task, model = build(2, 2)
    tokens, source = inputs(task, 3)
    other = tokens.clone()
    other[:, :4] = 9
    encoder_out = model.encoder.forward_torchscript(source)
    assert torch.equal(
        model.decoder(tokens, encoder_out=encoder_out)[0], model.decoder(other, encoder_out=encoder_out)[0]
    )
    other[:, 4] = tokens[:, 4] % 12 + 4
    assert not torch.equal(
        model.decoder(tokens, encoder_out=encoder_out)[0], model.decoder(other, encoder_out=encoder_out)[0]
    )


@pytest.mark.parametrize(("h", "c"), PATTERNS)
def test_padded_batch_equals_single_sentence(h: int, c: int) -> None:
    task, model = build(h, c)
    z = h * c or 1
    tokens, source = inputs(task, 4)
    tokens[0, 2 * z :] = task.tgt_dict.pad()
    batch, _ = model(**source, prev_output_tokens=tokens)
    words = int(source["src_lengths"][0])
    alone, _ = model(source["src_tokens"][:1, -words:], source["src_lengths"][:1], tokens[:1, : 2 * z])
    torch.testing.assert_close(batch[:1, : 2 * z], alone)


def test_positions_are_sinusoids_of_signed_positions() -> None:
    positions = np.array([0, 1, -1, 2, -2, 57, -300])
    frequencies = 10000.0 ** (-np.arange(8) / 7)
    angles = positions[:, None] * frequencies
    expected = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    embedding = SignedSinusoidalPositionalEmbedding(16)
    np.testing.assert_allclose(embedding(torch.tensor(positions)).numpy(), expected, atol=1e-4)
    half = embedding.half()(torch.tensor(positions))
    np.testing.assert_allclose(half.numpy(), expected, atol=1e-4)
    with pytest.raises(ValueError, match=r"even.*not 15"):
        SignedSinusoidalPositionalEmbedding(15)


@pytest.mark.parametrize(
    ("h", "kind", "positions"),
    [(1, "interleaved", [0, 1, 2, 3]), (2, "interleaved", [1, -1, 2, -2]), (2, "vanilla", [0, 1, 2, 3])],
)
def test_decoder_input_is_scaled_word_plus_position(h: int, kind: str, positions: list[int]) -> None:
    _, model = build(h, 1, decoder_word_positions=kind)
    tokens = torch.tensor([[2] * h + list(range(5, 9 - h))])
    words = 4.0 * model.decoder.embed_tokens(tokens)  # sqrt(16)
    words[:, :h] = 0
    expected = words + SignedSinusoidalPositionalEmbedding(16)(torch.tensor(positions))
    torch.testing.assert_close(model.decoder.embed(tokens, torch.arange(4)), expected)


@torch.no_grad()
def test_embedding_options_of_stock_are_obeyed() -> None:
    """Words that are not scaled, a norm, learned positions of the source, another width behind the layers: the first
    layer's inputs by hand, and the search's steps against the whole."""
    options = ("no_scale_embedding", "layernorm_embedding", "encoder_learned_pos")
    task, model = build(2, 1, decoder_output_dim=12, **dict.fromkeys(options, True))
    torch.nn.init.normal_(model.decoder.layernorm_embedding.weight)
    tokens, source = inputs(task, 3)
    seen: list[torch.Tensor] = []
    model.decoder.layers[0].register_forward_pre_hook(lambda layer, arguments: seen.append(arguments[0]))
    full, _ = model(**source, prev_output_tokens=tokens)
    words = model.decoder.embed_tokens(tokens)
    words[:, :2] = 0
    positions = torch.tensor([1, -1, 2, -2, 3, -3])
    expected = model.decoder.layernorm_embedding(words + SignedSinusoidalPositionalEmbedding(16)(positions))
    torch.testing.assert_close(seen[0].transpose(0, 1), expected)
    assert model.encoder.embed_positions.weight.requires_grad
    run = InferenceModel(model, None).begin(**source, beam=1)
    steps = [run.step(step)[0] for step in tokens.split(2, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), full)


@pytest.mark.parametrize("name", ["decoder_learned_pos", "no_token_positional_embeddings"])
def test_other_positions_than_signed_ones_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^--{name.replace('_', '-')} True is not supported \(only False\)$"):
        build(2, 1, **{name: True})


def test_direction_embeddings_only_where_the_paper_has_them() -> None:
    stock = sum(p.numel() for p in toy.stock_transformer(toy.task()).parameters())
    for h, kind, extra in [(1, "interleaved", 0), (2, "interleaved", 0), (4, "interleaved", 4 * 16), (4, "vanilla", 0)]:
        _, model = build(h, 1, decoder_word_positions=kind)
        assert sum(p.numel() for p in model.parameters()) == stock + extra


def test_direction_embeddings_tell_directions_apart() -> None:
    _, model = build(4, 1)
    embedded = model.decoder.embed(torch.full((1, 4), 2), torch.arange(4))[0]
    torch.testing.assert_close(embedded.diff(dim=0), model.decoder.embed_directions.weight.diff(dim=0))


def test_weights_of_another_pattern_are_refused() -> None:
    _, model = build(2, 1)
    _, other = build(2, 2)
    with pytest.raises(ValueError, match=r"\(2, 2, 0\), this run \(2, 1, 0\)"):
        model.load_state_dict(other.state_dict())


def test_weights_of_the_former_order_of_four_directions_are_refused() -> None:
    """It dealt the words of one segment after the other; checkpoints say no more than (h, c, middle to side)."""
    for h, c in ((4, 1), (6, 1), (4, 2)):
        _, model = build(h, c)
        state = model.state_dict()
        model.load_state_dict(state)
        state["decoder.interleaving"] = torch.tensor([h, c, 0.0])
        with pytest.raises(
            ValueError, match=rf"--num-directions {h} with an old order .* not the paper's .*train it again"
        ):
            model.load_state_dict(state)
    _, model = build(2, 1)
    assert model.state_dict()["decoder.interleaving"].tolist() == [2, 1, 0]  # there the order has not changed


def test_weights_of_another_dictionary_are_refused() -> None:
    _, model = build(2, 1)
    other = toy.model(toy.task(words=13))
    with pytest.raises(ValueError, match=r"dictionary of 17 entries.* one of 16"):
        model.load_state_dict(other.state_dict())


def test_weights_of_another_model_are_refused() -> None:
    task, model = build(2, 1)
    with pytest.raises(ValueError, match="does not hold an ibdecoder"):
        model.load_state_dict(toy.stock_transformer(task).state_dict())


def test_loss_reads_generation_order() -> None:
    _, model = build(2, 1)
    sample = {"target": torch.zeros(1, 2), "target_interleaved": torch.ones(1, 2)}
    assert torch.equal(model.get_targets(sample, None), sample["target_interleaved"])
