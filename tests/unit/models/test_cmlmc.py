"""The CMLMC model against fairseq's CMLM and against straightforward computations."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import tolerance
import torch
import toy
from fairseq.criterions.nat_loss import LabelSmoothedDualImitationCriterion
from fairseq.iterative_refinement_generator import DecoderOut, IterativeRefinementGenerator
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, build_model
from fairseq.models.nat import CMLMNATransformerModel
from fairseq.models.nat.cmlm_transformer import cmlm_base_architecture
from torch import Tensor

from amlp_fairseq.attention.registry import supporting
from amlp_fairseq.models.cmlmc import CMLMCConfig, CMLMCTransformerModel, _lowest
from amlp_fairseq.tasks.translation_cmlmc import TranslationCMLMCConfig, TranslationCMLMCTask

pytestmark = pytest.mark.usefixtures("float64")

PLAIN = {"no_repos": True, "no_concatenated_positions": True, "self_correction": -1}
WORDS = 12


def task() -> TranslationCMLMCTask:
    dictionary = toy.dictionary(WORDS)
    return TranslationCMLMCTask(TranslationCMLMCConfig(), dictionary, dictionary)


def model(seed: int = 0, **options: Any) -> CMLMCTransformerModel:
    torch.manual_seed(seed)
    values = {
        **toy.SIZES,
        **{"max_source_positions": 64, "max_target_positions": 64, "label_smoothing": 0.1, "dropout": 0.0},
        **{"attention_dropout": 0.0, "share_all_embeddings": True, **options},
    }
    return CMLMCTransformerModel.build_model(CMLMCConfig(**values), task()).eval()


def stock(**options: Any) -> CMLMNATransformerModel:
    args = Namespace(
        **{**toy.SIZES, "max_source_positions": 64, "max_target_positions": 64, "label_smoothing": 0.1, "dropout": 0.0},
        **{"attention_dropout": 0.0, "share_all_embeddings": True, **options},
    )
    cmlm_base_architecture(args)
    return CMLMNATransformerModel.build_model(args, task()).eval()


def batch(seed: int = 1) -> dict[str, Tensor]:
    """Sources padded on the left, targets on the right and partly masked."""
    generator = torch.Generator().manual_seed(seed)

    def words(*shape: int) -> Tensor:
        return torch.randint(4, 4 + WORDS, shape, generator=generator)

    source, target = words(3, 8), words(3, 9)
    source[:, 0], source[:, -1] = 0, 2
    source[1, :3], source[1, 3] = 1, 0
    target[:, 0], target[:, -1] = 0, 2
    target[2, 5], target[2, 6:] = 2, 1
    masked = target.clone()
    masked[0, 2:5] = masked[1, 1] = masked[2, 3:5] = 3
    return {
        "src_tokens": source,
        "src_lengths": source.ne(1).sum(1),
        "prev_output_tokens": masked,
        "tgt_tokens": target,
    }


def losses_and_inputs(network: CMLMCTransformerModel, inputs: dict[str, Tensor]) -> tuple[Any, list[Tensor]]:
    """Losses that a model returns in training, and the inputs of each pass of its decoder."""
    seen: list[Tensor] = []
    handle = network.decoder.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(kwargs["prev_output_tokens"].clone()), with_kwargs=True
    )
    losses = network(**inputs)
    handle.remove()
    return losses, seen


def guesses_from_masks(network: CMLMCTransformerModel, inputs: dict[str, Tensor]) -> Tensor:
    target = inputs["tgt_tokens"]
    scores = network.decoder(
        normalize=False,
        prev_output_tokens=target.masked_fill(target.ne(0) & target.ne(1) & target.ne(2), 3),
        encoder_out=network.encoder(inputs["src_tokens"], inputs["src_lengths"]),
    )
    return scores[..., 3:].argmax(-1) + 3


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"encoder_normalize_before": True, "decoder_normalize_before": True},
        {"encoder_learned_pos": True, "decoder_learned_pos": True, "pred_length_offset": True},
        {"decoder_normalize_before": True, "no_decoder_final_norm": True},
    ],
    ids=["post-norm", "pre-norm", "learned positions", "no norm at the end"],
)
def test_without_its_three_changes_it_is_stock_cmlm(options: dict[str, Any]) -> None:
    ours, theirs = model(**PLAIN, **options), stock(**options)
    theirs.load_state_dict(ours.state_dict())
    inputs = batch()
    mine, reference = ours(**inputs), theirs(**inputs)
    assert mine.keys() == reference.keys() == {"word_ins", "length"}
    words = inputs["tgt_tokens"].ne(1)
    for name in mine:
        a, b = mine[name], reference[name]
        keep = words if name == "word_ins" else slice(None)
        torch.testing.assert_close(a["out"][keep], b["out"][keep], **tolerance.FLOAT32)
        assert torch.equal(a["tgt"], b["tgt"])
        assert a.get("factor", 1.0) == b.get("factor", 1.0)
    assert torch.equal(mine["word_ins"]["mask"], reference["word_ins"]["mask"])
    criterion = LabelSmoothedDualImitationCriterion(None, 0.1)
    torch.testing.assert_close(criterion(ours, sample(inputs))[0], criterion(theirs, sample(inputs))[0])


def sample(inputs: dict[str, Tensor]) -> dict[str, Any]:
    """The batch as fairseq's criterion takes it."""
    return {
        "net_input": {"src_tokens": inputs["src_tokens"], "src_lengths": inputs["src_lengths"]},
        "target": inputs["tgt_tokens"],
        "prev_target": inputs["prev_output_tokens"],
        "nsentences": 3,
        "ntokens": 20,
    }


def test_the_correction_is_not_in_the_perplexity() -> None:
    network = model(self_correction=0, replace_factor=1.0, label_smoothing=0.0)
    logged = LabelSmoothedDualImitationCriterion(None, 0.0)(network, sample(batch()))[2]
    assert logged["correction-loss"] > 1
    assert float(logged["nll_loss"]) == pytest.approx(float(logged["word_ins-loss"]))


def test_without_its_three_changes_it_decodes_as_stock_cmlm() -> None:
    """Under fairseq's own generator, all iterations; ours masks when an iteration begins, stock when it ends."""
    ours, theirs = model(**PLAIN), stock()
    theirs.load_state_dict(ours.state_dict())
    with torch.no_grad():  # no special symbol is ever the best: ours does not write them
        for one in (ours, theirs):
            projection = one.decoder.output_projection.weight
            projection.data = projection.data.clone()
            projection[:4] = 0
            projection[4:] *= 3
            one.decoder.embed_length.weight[6] += 0.2
    inputs = batch()
    sample = {"net_input": {"src_tokens": inputs["src_tokens"], "src_lengths": inputs["src_lengths"]}}
    for iterations in (0, 1, 4, 9):
        generator = IterativeRefinementGenerator(task().target_dictionary, max_iter=iterations, adaptive=False)
        for mine, reference in zip(
            generator.generate([ours], sample), generator.generate([theirs], sample), strict=True
        ):
            assert torch.equal(mine[0]["tokens"], reference[0]["tokens"])
            torch.testing.assert_close(mine[0]["positional_scores"], reference[0]["positional_scores"])


def test_correction_replaces_revealed_words_by_guesses_from_full_masks() -> None:
    network, inputs = model(replace_factor=0.5), batch()
    target, masked = inputs["tgt_tokens"], inputs["prev_output_tokens"]
    losses, seen = losses_and_inputs(network, inputs)
    assert len(seen) == 3  # fully masked, masked, replaced
    (everything,) = (tokens for tokens in seen if tokens.eq(3).sum() > masked.eq(3).sum())
    words = target.ne(0) & target.ne(1) & target.ne(2)
    assert torch.equal(everything, target.masked_fill(words, 3))
    guesses = guesses_from_masks(network, inputs)
    replaced = losses["correction"]["mask"]
    mixed = torch.where(replaced, guesses, masked)
    assert not torch.equal(mixed, masked)
    revealed = words & masked.ne(3)
    assert not (replaced & ~revealed).any()
    assert replaced.sum(1).tolist() == [n // 2 for n in revealed.sum(1).tolist()]
    assert torch.equal(losses["word_ins"]["mask"], masked.eq(3))
    assert losses["word_ins"]["factor"] == losses["correction"]["factor"] == 0.5
    for name, tokens in (("word_ins", masked), ("correction", mixed)):  # the mask loss sees no wrong word
        encoder_out = network.encoder(inputs["src_tokens"], inputs["src_lengths"])
        expected = network.decoder(normalize=False, prev_output_tokens=tokens, encoder_out=encoder_out)
        torch.testing.assert_close(losses[name]["out"], expected)


@pytest.mark.parametrize("ratio", [0.3, 0.5, 1.0])
@pytest.mark.parametrize("start", [0, -1], ids=["CMLMC", "CMLM"])
def test_glancing_reveals_a_share_of_the_wrong_guesses(ratio: float, start: int) -> None:
    network, inputs = model(glancing_ratio=ratio, self_correction=start).train(), batch()
    guesses = guesses_from_masks(network, inputs)
    inputs["tgt_tokens"][0, 1:6] = guesses[0, 1:6]  # of 7 words 5 are right, or more
    target = inputs["tgt_tokens"]
    words = target.ne(0) & target.ne(1) & target.ne(2)
    wrong = [sum(map(bool, row[mask])) for row, mask in zip(guesses.ne(target), words, strict=True)]
    assert wrong[0] < min(wrong[1:])
    losses, seen = losses_and_inputs(network, inputs)
    assert len(seen) == (2 if start < 0 else 3)  # the guesses are those of the correction loss, too
    revealed = words & ~losses["word_ins"]["mask"]
    assert revealed.sum(1).tolist() == [int(ratio * count) for count in wrong]
    masked = target.masked_fill(words & ~revealed, 3)
    assert any(torch.equal(masked, tokens) for tokens in seen)
    assert start < 0 or not (losses["correction"]["mask"] & ~revealed).any()
    torch.manual_seed(5)
    draws = [network(**inputs)["word_ins"]["mask"] for _ in range(8)]
    assert ratio == 1 or any(not torch.equal(draws[0], mask) for mask in draws)


def test_glancing_is_for_training() -> None:
    """The validation loss is that of the task's masks."""
    network, inputs = model(glancing_ratio=0.5), batch()
    assert torch.equal(network(**inputs)["word_ins"]["mask"], inputs["prev_output_tokens"].eq(3))


def test_correction_changes_with_every_call() -> None:
    network, inputs = model(replace_factor=0.5), batch()
    torch.manual_seed(3)
    masks = [network(**inputs)["correction"]["mask"] for _ in range(8)]
    assert any(not torch.equal(masks[0], mask) for mask in masks)


@pytest.mark.parametrize(("start", "update", "corrects"), [(0, 0, True), (5, 4, False), (5, 5, True), (-1, 9, False)])
def test_correction_begins_at_its_update(start: int, update: int, corrects: bool) -> None:
    network = model(self_correction=start)
    network.set_num_updates(update)
    losses = network(**batch())
    assert ("correction" in losses) == corrects
    assert losses["word_ins"]["factor"] == (0.5 if corrects else 1.0)


def test_losses_without_positions_have_no_share() -> None:
    network, inputs = model(), batch()
    words = inputs["tgt_tokens"].ne(0) & inputs["tgt_tokens"].ne(1) & inputs["tgt_tokens"].ne(2)
    inputs["prev_output_tokens"] = inputs["tgt_tokens"].masked_fill(words, 3)
    losses = network(**inputs)
    assert not losses["correction"]["mask"].any()
    assert losses["word_ins"]["factor"] == 1.0


@pytest.mark.parametrize("option", ["replace_factor", "glancing_ratio"])
def test_a_share_out_of_range_is_named(option: str) -> None:
    with pytest.raises(ValueError, match=rf"--{option.replace('_', '-')} 1.5 must be between 0 and 1"):
        model(**{option: 1.5})


def test_positions_are_concatenated_and_not_added() -> None:
    network, inputs = model(), batch()
    encoder, tokens = network.encoder, inputs["src_tokens"]
    x, embedding = encoder.forward_embedding(tokens)
    weight, bias = encoder.join_positions.weight, encoder.join_positions.bias
    assert weight.shape == (16, 32)
    torch.testing.assert_close(embedding, encoder.embed_tokens(tokens))
    expected = embedding @ weight[:, :16].T + encoder.embed_positions(tokens).double() @ weight[:, 16:].T + bias
    torch.testing.assert_close(x, expected)
    decoder, tokens = network.decoder, inputs["tgt_tokens"]
    x, padding = decoder.forward_embedding(tokens)
    weight, bias = decoder.join_positions.weight, decoder.join_positions.bias
    expected = (
        decoder.embed_tokens(tokens) @ weight[:, :16].T
        + decoder.embed_positions(tokens).double() @ weight[:, 16:].T
        + bias
    )
    torch.testing.assert_close(x, expected)
    assert torch.equal(padding, tokens.eq(1))


@pytest.mark.parametrize("attention", supporting("causal self"))
def test_repos_is_a_causal_sublayer_after_the_unmasked_one(attention: str) -> None:
    """With the unmasked attention and the source silenced, a position sees itself and what is before it."""
    network = model(repos_attention_type=attention, decoder_kernel_size_list=[6], attention_window=6)
    layer = network.decoder.layers[0]
    for silent in (layer.self_attn, layer.encoder_attn):
        torch.nn.init.zeros_(silent.out_proj.weight)
    x = torch.randn(6, 1, 16, requires_grad=True)
    out, _, _ = layer(x, torch.randn(4, 1, 16), None)
    direction = torch.randn(16)
    seen = torch.stack(
        [torch.autograd.grad(row[0] @ direction, x, retain_graph=True)[0].ne(0).any(2)[:, 0] for row in out]
    )
    assert torch.equal(seen, torch.ones(6, 6).tril().bool())
    assert "causal_attn" not in dict(model(no_repos=True).decoder.layers[0].named_children())


@pytest.mark.parametrize("attention", ["softmax", "amlp_cov", "amlp_pquery", "abc", "local"])
def test_a_sentence_does_not_depend_on_its_batch(attention: str) -> None:
    types = {"decoder_self_attention_type": attention, "decoder_cross_attention_type": attention}
    network = model(**types, attention_window=5)
    inputs = batch()
    encoder_out = network.encoder(inputs["src_tokens"], inputs["src_lengths"])
    out = network.decoder(normalize=True, prev_output_tokens=inputs["prev_output_tokens"], encoder_out=encoder_out)
    for i in range(3):
        source = inputs["src_tokens"][i][inputs["src_tokens"][i].ne(1)].unsqueeze(0)
        words = inputs["tgt_tokens"][i].ne(1)
        alone = network.decoder(
            normalize=True,
            prev_output_tokens=inputs["prev_output_tokens"][i][words].unsqueeze(0),
            encoder_out=network.encoder(source, torch.tensor([source.size(1)])),
        )
        torch.testing.assert_close(out[i][words], alone[0])


def state(network: CMLMCTransformerModel, lengths: list[int]) -> DecoderOut:
    empty = DecoderOut(None, None, None, 0, 0, None)
    return network._fully_masked(torch.tensor(lengths), empty, torch.float32)


def test_candidates_stand_around_the_likeliest_length() -> None:
    network = model()
    candidates = network.regenerate_length_beam(state(network, [2, 3, 9]), 4)
    # Lengths with start and end: no word at all only where that is the likeliest.
    assert candidates.output_tokens.ne(1).sum(1).tolist() == [2, 2, 2, 2, 3, 3, 3, 4, 7, 8, 9, 10]
    for row in candidates.output_tokens.tolist():
        n = sum(token != 1 for token in row)
        assert row == [0] + [3] * (n - 2) + [2] + [1] * (len(row) - n)
    assert candidates.output_scores.shape == candidates.output_tokens.shape
    assert not candidates.output_scores.any()


def test_lengths_stay_in_the_range_of_the_decoder() -> None:
    network = model(max_target_positions=20)
    assert state(network, [-3, 0, 500]).output_tokens.ne(1).sum(1).tolist() == [2, 2, 20]


def test_a_target_longer_than_the_length_table_counts_as_its_last_length() -> None:
    network, inputs = model(max_target_positions=400), batch()
    target = torch.full((3, 300), 5)
    target[:, 0], target[:, -1] = 0, 2
    losses = network(**{**inputs, "tgt_tokens": target, "prev_output_tokens": target.masked_fill(target.eq(5), 3)})
    assert losses["length"]["tgt"].tolist() == [255, 255, 255]


@pytest.mark.parametrize("length", [257, 301, 515])
def test_differences_of_lengths_are_exact_in_bfloat16(length: int) -> None:
    network = model(pred_length_offset=True, max_source_positions=600, max_target_positions=600).bfloat16()
    source = torch.full((2, length), 5)
    source[1, :10] = 1
    target = torch.full((2, length), 5)
    encoder_out = network.encoder(source, source.ne(1).sum(1))
    length_out = network.decoder.forward_length(normalize=False, encoder_out=encoder_out)
    classes = network.decoder.forward_length_prediction(length_out, encoder_out, target)
    assert classes.tolist() == [128, 138]  # 128 is as long as the source
    likeliest = length_out.argmax(-1) - 128
    predicted = network.decoder.forward_length_prediction(length_out, encoder_out)
    assert predicted.tolist() == [likeliest[0] + length, likeliest[1] + length - 10]


@pytest.mark.parametrize("padding", range(1, 60, 7))
def test_equal_scores_are_masked_from_the_left(padding: int) -> None:
    """Also where the batch is wider."""
    scores = torch.zeros(1, 20 + padding)
    scores[:, 20:] = 2.0
    assert _lowest(scores, torch.tensor([[7]])).nonzero()[:, 1].tolist() == list(range(7))


@pytest.mark.parametrize(
    ("attention", "parameters"), [("amlp_pquery", 12 * 24_768), ("abc", 12 * 2 * 16 * 64), ("local", 0)]
)
def test_parameters_of_table_3(attention: str, parameters: int) -> None:
    """Parameters of the rows in the AMLP paper's Table 3 in addition to CMLMC's: 0.30M, 0.02M and, where local
    attention has nothing to learn, 0.02M."""

    def count(arch: str) -> int:
        args = Namespace(
            max_source_positions=64, max_target_positions=64, label_smoothing=0.1, share_all_embeddings=True
        )
        ARCH_CONFIG_REGISTRY[arch](args)
        cfg = CMLMCConfig(**vars(args))
        assert cfg.encoder_self_attention_type == "softmax"
        return sum(p.numel() for p in ARCH_MODEL_REGISTRY[arch].build_model(cfg, task()).parameters())

    row = "amlp" if attention == "amlp_pquery" else attention
    assert count(f"cmlmc_{row}_wmt_en_de") - count("cmlmc_transformer_wmt_en_de") == parameters


def test_the_kernel_sizes_are_those_of_local_attention() -> None:
    attention = {"decoder_self_attention_type": "local", "decoder_kernel_size_list": [7]}
    windows = [model(**attention), model(**attention, attention_window=3)]
    assert [layer.self_attn.left for network in windows for layer in network.decoder.layers] == [3, 3, 1, 1]
    row = Namespace()
    ARCH_CONFIG_REGISTRY["cmlmc_local_wmt_en_de"](row)
    assert row.attention_window == 5


@pytest.mark.parametrize("attention", ["average", "dynamic_conv", "cnn"])
def test_convolutions_and_averages_can_be_its_self_attention(attention: str) -> None:
    network = model(decoder_self_attention_type=attention, decoder_kernel_size_list=[3])
    assert network(**batch())["word_ins"]["out"].isfinite().all()


@pytest.mark.parametrize(
    "name", ["no_scale_embedding", "layernorm_embedding", "no_token_positional_embeddings", "src_embedding_copy"]
)
def test_options_of_stock_cmlm_that_it_does_not_have_are_refused(name: str) -> None:
    args = Namespace(**toy.SIZES, max_source_positions=64, max_target_positions=64, label_smoothing=0.1)
    cmlm_base_architecture(args)
    args._name = "cmlmc_transformer"
    assert type(build_model(args, task())) is CMLMCTransformerModel
    setattr(args, name, True)
    with pytest.raises(ValueError, match=rf"^--{name.replace('_', '-')} True is not supported \(only False\)$"):
        build_model(args, task())


def test_what_cannot_see_the_source_is_refused() -> None:
    with pytest.raises(ValueError, match="--decoder-cross-attention-type xca: it cannot be noncausal cross attention"):
        model(decoder_cross_attention_type="xca")
