"""examples/super_resolution: the images and scores by hand, the model against diffusers' own, the command."""

from __future__ import annotations

import json
import runpy
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from amlp_fairseq.attention.registry import ATTENTIONS, supporting
from amlp_fairseq.training.results import read_results

pytest.importorskip("diffusers", reason="it needs Python 3.11")
sys.path.insert(0, str(commands.ROOT / "examples/super_resolution"))
import images
import scores
import sr3
import super_resolution
from shapes import Drawn, shapes

SMALL: dict[str, Any] = {"low_size": 4, "high_size": 16, "channels": [16, 32], "attention_sizes": [16, 8]}


def options(monkeypatch: pytest.MonkeyPatch, *words: str, **changes: Any) -> Namespace:
    """Those of a command line of the small model."""
    for name, value in {**SMALL, **changes}.items():
        values = value if isinstance(value, list) else [value]
        words += (f"--{name.replace('_', '-')}", *map(str, values))
    monkeypatch.setattr(sys, "argv", ["super_resolution.py", *words])
    return super_resolution.arguments()


def model(args: Namespace, attention: str) -> sr3.SR3:
    return super_resolution.build(args, attention, 1)


def noise(*shape: int, low: int = 0, high: int = 256) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(low, high, shape, generator=generator, dtype=torch.uint8)


# ---------------------------------------------------------------------------------------------------------- the images


def test_enlarged_as_pillow_does() -> None:
    """Of medium brightness: Pillow rounds between rows and columns, and cuts off what is below 0 or above 255."""
    high = torch.cat([noise(2, 3, 32, 32) // 2, shapes(2, 32, seed=5) // 2]) + 64
    for found, image in zip(images.enlarged(high, 8), high, strict=True):
        expected = Image.fromarray(image.permute(1, 2, 0).numpy())
        for size in (8, 32):
            expected = expected.resize((size, size), Image.Resampling.BICUBIC)
        difference = np.abs(found.permute(1, 2, 0).numpy().astype(int) - np.asarray(expected))
        assert difference.max() <= 2
        assert difference.mean() < 0.5


def test_a_folder_has_the_squares_in_the_middle(tmp_path: Path) -> None:
    """Sorted by path, whatever else is in the folder; grey images have three equal colours."""
    wide = np.zeros((16, 20, 3), np.uint8)
    wide[:, 2:18, 0] = 200
    (tmp_path / "more").mkdir()
    Image.fromarray(wide).save(tmp_path / "more/b.png")
    Image.fromarray(np.full((40, 40), 7, np.uint8)).save(tmp_path / "a.PNG")
    (tmp_path / "notes.txt").write_text("no image")
    folder = images.Folder(tmp_path, 16)
    assert len(folder) == 2
    assert folder[0].eq(7).all()
    assert folder[1][0].eq(200).all()
    assert folder[1][1:].eq(0).all()
    assert folder[1].shape == (3, 16, 16)


def test_other_pixels_of_the_same_size_are_other_images(tmp_path: Path) -> None:
    checksums = []
    for value in (1, 2, 1):
        Image.fromarray(np.full((16, 16, 3), value, np.uint8)).save(tmp_path / "a.bmp")
        checksums.append(images.Folder(tmp_path, 16).sha256)
    assert checksums[0] == checksums[2] != checksums[1]


def test_the_drawn_images() -> None:
    """A seed draws the same again; what an eighth of the pixels shows is not all there is."""
    drawn = shapes(20, 32, seed=1)
    assert (drawn.shape, drawn.dtype) == ((20, 3, 32, 32), torch.uint8)
    assert torch.equal(drawn, shapes(20, 32, seed=1))
    assert not torch.equal(drawn, shapes(20, 32, seed=2))
    assert 15 < np.mean(scores.psnr(images.enlarged(drawn, 8), drawn)) < 30


# ---------------------------------------------------------------------------------------------------------- the scores


def test_psnr_of_the_definition() -> None:
    found, true = noise(2, 3, 16, 16), shapes(2, 16, seed=1)
    squared = ((found.numpy().astype(np.float64) - true.numpy()) ** 2).mean(axis=(1, 2, 3))
    assert scores.psnr(found, true) == pytest.approx(list(10 * np.log10(255**2 / squared)))


def test_ssim_of_plain_images() -> None:
    """Without contrast (2ab + C₁) / (a² + b² + C₁) with C₁ = (0.01 · 255)² is left; of equal images it is 1."""
    a, b = (torch.full((1, 3, 16, 16), value, dtype=torch.uint8) for value in (100, 50))
    assert scores.ssim(a, b) == pytest.approx([(10000 + 6.5025) / (12500 + 6.5025)])
    assert scores.ssim(a, a) == [1]


def test_ssim_of_one_window() -> None:
    """Wang et al. (2004), Eq. 13 to 16, in the only window of 11 x 11 pixels; the mean over colours."""
    found, true = noise(1, 3, 11, 11), noise(1, 3, 11, 11, low=100, high=200)
    along = np.exp(-(np.arange(-5, 6) ** 2) / (2 * 1.5**2))
    weights = np.outer(along, along) / along.sum() ** 2
    c1, c2, of_colours = (0.01 * 255) ** 2, (0.03 * 255) ** 2, []
    for x, y in zip(*(image[0].numpy().astype(np.float64) for image in (found, true)), strict=True):
        mx, my = (weights * x).sum(), (weights * y).sum()
        vx, vy = (weights * (x - mx) ** 2).sum(), (weights * (y - my) ** 2).sum()
        vxy = (weights * (x - mx) * (y - my)).sum()
        of_colours.append((2 * mx * my + c1) * (2 * vxy + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2)))
    assert scores.ssim(found, true) == pytest.approx([np.mean(of_colours)])


def test_the_table_averages_over_seeds() -> None:
    common = {"self_attention": "amlp_cov", "parameters": 12345678, "bicubic_psnr": 20.0, "bicubic_ssim": 0.5}
    lines = [{**common, "psnr": 21.0, "ssim": 0.6}, {**common, "psnr": 22.0, "ssim": 0.8}]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in scores.table(lines).splitlines()]
    assert cells[2] == ["bicubic", "", "20.00", "0.500", "", "", "", ""]
    assert cells[3] == ["amlp_cov", "12.35M", "21.50", "0.700", "AMLP", "99.73M", "23.28", "0.684"]


# ----------------------------------------------------------------------------------------------------------- the model

#: The registry's names of the parameters of diffusers' attention.
NAMES = {"group_norm": "norm", "to_q": "attention.q_proj", "to_k": "attention.k_proj", "to_v": "attention.v_proj"}


@pytest.mark.parametrize("prediction", sr3.PREDICTIONS)
def test_softmax_is_the_attention_of_diffusers(prediction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    args = options(monkeypatch, prediction=prediction)
    stock = sr3.unet(args).eval()
    ours = model(args, "softmax").eval()
    state = {}
    for name, value in stock.state_dict().items():
        for theirs, own in {**NAMES, "to_out.0": "attention.out_proj"}.items():
            if "attentions" in name:
                name = name.replace(theirs, own)
        state[name] = value
    ours.unet.load_state_dict(state)
    assert any("attention.q_proj" in name for name in state)
    x, steps = torch.randn(2, 6, 16, 16), torch.tensor([3, 1999])
    with torch.no_grad():
        torch.testing.assert_close(ours.unet(x, steps).sample, stock(x, steps).sample)


@pytest.mark.parametrize("attention", supporting("noncausal self"))
def test_every_self_attention_trains_and_samples(attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two heads, behind every residual block: pixels of each level see each other, and all weights learn."""
    found = model(options(monkeypatch, "--encoder-attention-heads", "2"), attention)
    given, high = torch.rand(2, 2, 3, 16, 16) * 2 - 1
    generator = torch.Generator().manual_seed(1)
    found(high, given, generator).backward()
    gradients = {name: parameter.grad for name, parameter in found.named_parameters()}
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients.values()), gradients
    places = [module for module in found.modules() if isinstance(module, sr3.PixelAttention)]
    assert sorted(place.norm.num_channels for place in places) == [16] * 3 + [32] * 4
    sample = found.eval().sample(given, 2, generator)
    assert sample.shape == high.shape
    assert sample.isfinite().all()


def test_the_others_are_cross_attentions_and_a_recurrence() -> None:
    others = ATTENTIONS.keys() - supporting("noncausal self")
    assert {name for name in others if "causal self" in ATTENTIONS[name].patterns} == {"ssru"}


class Knowing(nn.Module):
    """In the place of the U-Net: what is to be found in noisy images, by its definition, from the true ones."""

    def __init__(self, high: Tensor, given: Tensor, prediction: str) -> None:
        super().__init__()
        self.high, self.given, self.prediction = high, given, prediction
        beta = np.linspace(1e-6, 1e-2, 2000)
        self.alpha_bar = torch.from_numpy(np.cumprod(1 - beta)).float()

    def forward(self, x: Tensor, steps: Tensor) -> Namespace:
        given, noisy = x.chunk(2, dim=1)
        assert torch.equal(given, self.given)
        kept, lost = (
            root.view(-1, 1, 1, 1) for root in (self.alpha_bar[steps].sqrt(), (1 - self.alpha_bar[steps]).sqrt())
        )
        noise = (noisy - kept * self.high) / lost
        return Namespace(sample=noise if self.prediction == "epsilon" else kept * noise - lost * self.high)


@pytest.mark.parametrize("prediction", sr3.PREDICTIONS)
def test_diffusion_finds_the_image_that_the_unet_knows(prediction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = model(options(monkeypatch, prediction=prediction), "softmax")
    high, given = torch.rand(2, 3, 3, 16, 16) * 2 - 1
    found.unet = Knowing(high, given, prediction)
    generator = torch.Generator().manual_seed(1)
    assert float(found(high, given, generator)) < 1e-4
    for steps in (7, 100):
        torch.testing.assert_close(found.sample(given, steps, generator), high, atol=2e-3, rtol=0)


@pytest.mark.parametrize(("sizes", "millions"), [([16], "99.48"), ([128, 64, 32, 16, 8], "106.47")])
def test_parameters_at_the_scale_of_the_paper(sizes: list[int], millions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both numbers stand in docs/super-resolution.md."""
    scale = {"low_size": 16, "high_size": 128, "channels": [64, 128, 256, 512, 512], "attention_sizes": sizes}
    args = options(monkeypatch, "--scale", "paper", **scale)
    with torch.device("meta"):
        found = sum(parameter.numel() for parameter in model(args, "softmax").unet.parameters())
    assert f"{found / 1e6:.2f}" == millions


# --------------------------------------------------------------------------------------------------------- the command


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], message: str, *words: object) -> None:
    """The command ends with one line that has the message."""
    with pytest.raises(SystemExit) as error:
        commands.call(super_resolution, monkeypatch, *words)
    line = capsys.readouterr().err + (error.value.code if isinstance(error.value.code, str) else "")
    assert message in line
    assert line.startswith("super_resolution.py: ")
    assert line.strip().count("\n") == 0


def test_trains_and_scores_each_attention_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """More updates make an image better that is there to be learned by heart; what the file of results has is not
    trained again."""
    (tmp_path / "faces").mkdir()
    Image.fromarray(shapes(1, 16, seed=3)[0].permute(1, 2, 0).numpy()).save(tmp_path / "faces/one.png")
    results, folder = tmp_path / "results.jsonl", tmp_path / "faces"
    settings: dict[str, Any] = {**SMALL, "images": folder, "test_images": folder, "results": results}
    settings |= {"encoder_self_attention_type": ["softmax", "amlp_pquery"], "batch_size": 4, "lr": 0.005}
    settings |= {"steps": 60, "average_every": 3, "sampling_steps": 5}
    commands.call(super_resolution, monkeypatch, **settings)
    printed = capsys.readouterr()
    lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    assert [line["self_attention"] for line in lines] == ["softmax", "amlp_pquery"]
    for line in lines:
        assert line["data"]["train"].startswith("faces ")
        assert line["options"]["lr"] == 0.005
        assert {"commit", "device", "torch", "diffusers"} <= line.keys()
        assert f"{line['psnr']:.2f}" in printed.out
    assert "amlp_pquery, seed 1: step 60 of 60" in printed.err

    commands.call(super_resolution, monkeypatch, **settings)
    again = capsys.readouterr()
    assert (again.out, again.err) == (printed.out, "")
    settings |= {"steps": 1, "encoder_self_attention_type": "softmax"}
    commands.call(super_resolution, monkeypatch, **settings)
    after_one = json.loads(results.read_text(encoding="utf-8").splitlines()[2])
    assert after_one["psnr"] + 1 < lines[0]["psnr"]
    assert after_one["bicubic_psnr"] == lines[0]["bicubic_psnr"]


def test_the_last_states_are_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 12 updates those after 4, 6, 8, 10 and 12."""
    states: list[dict[str, Tensor]] = []
    scored: list[dict[str, Tensor]] = []

    class Recording(torch.optim.AdamW):
        def step(self, *args: Any) -> None:  # type: ignore[override]
            super().step(*args)
            states.append({name: value.detach().clone() for name, value in built.state_dict().items()})

    args = options(monkeypatch, steps=12, average_every=2, batch_size=1)
    drawn: dict[str, Any] = {"train": Drawn(3, 16, seed=1), "test": Drawn(1, 16, seed=2)}
    built = model(args, "softmax")
    monkeypatch.setattr(super_resolution, "build", lambda *_: built)
    monkeypatch.setattr(torch.optim, "AdamW", Recording)
    monkeypatch.setattr(super_resolution, "score", lambda model, _: scored.append(model.state_dict()) or {})
    super_resolution.train(super_resolution.Job(drawn, "softmax", 1, args))
    assert len(states) == 12
    for name, value in scored[0].items():
        expected = torch.stack([states[step - 1][name].double() for step in (4, 6, 8, 10, 12)]).mean(dim=0)
        torch.testing.assert_close(value.double(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--encoder-self-attention-type", "local_p"], "local_p: it cannot be noncausal self attention; choose one of"),
        (["--encoder-self-attention-type", "amlp-cov"], "'amlp-cov' is unknown; did you mean amlp_cov?"),
        (["--images", "."], "--images and --test-images need each other"),
        (["--low-size", "32"], "--low-size 32 must be below --high-size 32"),
        (["--high-size", "10"], "--high-size 10 is below 11, the windows of SSIM"),
        (["--high-size", "30"], "--high-size 30 cannot be halved 2 times for --channels 16 32 48"),
        (["--high-size", "12", "--low-size", "4"], "--attention-sizes 16 8: the U-Net has 12 6 3"),
        (["--attention-sizes", "64"], "--attention-sizes 64: the U-Net has 32 16 8"),
        (["--channels", "16", "20", "46"], "--channels 16 20 46 must be multiples of a quarter of the first"),
        (["--encoder-attention-heads", "3"], "--encoder-attention-heads 3 must divide --channels 16 32 48"),
        (["--scale", "papers"], "--scale 'papers' is unknown; did you mean paper?"),
        (["--step", "1"], "--step is unknown; did you mean --steps?"),
        (["--device", "gpu"], "--device gpu cannot be used"),
        (["--lr", "nan"], "--lr nan must be above 0"),
        (["--dropout", "1"], "--dropout 1.0 must be from 0 to below 1"),
        (["--sampling-steps", "2001"], "--sampling-steps 2001 is more than 2000"),
        (["--results", "/dev/null/results.jsonl"], "/dev/null exists"),
        (["--decoder-kernel-size-list", "3"], "--decoder-kernel-size-list is unknown"),
    ],
)
def test_mistakes(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(monkeypatch, capsys, message, *words)


@pytest.mark.parametrize("library", ["diffusers", "skimage.metrics"])
def test_a_library_that_lacks(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sr3", "scores"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(SystemExit, match=r'^super_resolution.py: .*: pip install "amlp-fairseq\[images\]"$') as error:
        runpy.run_path(str(super_resolution.__file__))
    assert library in str(error.value.code)


def test_folders_that_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.png"
    words = ["--images", tmp_path, "--test-images", tmp_path]
    refused(monkeypatch, capsys, f"{tmp_path} is no folder with images", *words)
    path.write_text("no image")
    refused(monkeypatch, capsys, f"{path} is no image, or damaged", *words)
    Image.fromarray(np.zeros((31, 40), np.uint8)).save(path)
    refused(monkeypatch, capsys, f"{path} has 40 x 31 pixels; --high-size is 32", *words)


@pytest.mark.parametrize(("kind", "mode"), [(np.uint16, "I;16"), (np.int32, "I"), (np.float32, "F")])
def test_only_8_bits(kind: type, mode: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    Image.fromarray(np.zeros((40, 40), kind)).save(path)
    with pytest.raises(ValueError, match=rf"{path} has pixels of more than 8 bits \(Pillow's mode {mode}\)"):
        images.Folder(tmp_path, 32)


@pytest.mark.parametrize("damage", ["cut off", "broken chunk", "too large for Pillow"])
def test_damage_is_found_at_the_start(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(noise(256, 256, 3).numpy()).save(path)  # in several chunks
    whole = path.read_bytes()
    if damage == "cut off":
        path.write_bytes(whole[:2000])
    elif damage == "broken chunk":
        path.write_bytes(b"\1\1\1\1".join(whole.rsplit(b"IDAT", 1)))
    else:
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ValueError, match=f"{path} is no image, or damaged"):
        images.Folder(tmp_path, 32)


def test_the_page_shows_the_committed_results() -> None:
    page = (commands.ROOT / "docs/super-resolution.md").read_text(encoding="utf-8")
    lines = read_results(commands.ROOT / "docs/results/super_resolution.jsonl")
    assert [line["self_attention"] for line in lines] == scores.PUBLISHED
    drawn = {part: f"drawn {Drawn(count, 32, seed).sha256}" for part, (count, seed) in super_resolution.DRAWN.items()}
    assert all(line["data"] == drawn for line in lines)
    assert scores.table(lines) in page
