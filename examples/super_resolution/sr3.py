"""SR3 (Saharia et al. 2022) with any attention of the registry: diffusion from noise to an image, given a smaller one.

U-Net and noise are diffusers'. What differs from SR3: the U-Net is told the step, not the level of the noise, and its
residual blocks are those of DDPM.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler, UNet2DModel
from torch import Tensor, nn

from amlp_fairseq.attention.registry import build_attention
from amlp_fairseq.attention.spec import AttentionSpec

#: Of the noise: how many, and β of the first and the last (linear between them).
STEPS, FIRST, LAST = 2000, 1e-6, 1e-2
#: What the U-Net finds: the noise, as in SR3, or √ᾱ · noise - √(1 - ᾱ) · image (Salimans and Ho 2022), with which it
#: learns in fewer updates.
PREDICTIONS = ("epsilon", "v_prediction")


class SR3(nn.Module):
    """Sharpens images that were enlarged from few pixels.

    Images are in [-1, 1], (B, 3, S, S).

    Args:
        options: ``high_size`` (S), ``channels``, ``residual_blocks``, ``dropout``, ``attention_sizes``, and what the
            attentions read as those of an encoder.

    Raises:
        ValueError: if the attention cannot stand here.
    """

    def __init__(self, options: Namespace) -> None:
        super().__init__()
        self.unet = unet(options)
        replace_self_attentions(self.unet, options)
        self.prediction = options.prediction
        self.noise: Any = DDPMScheduler(STEPS, beta_start=FIRST, beta_end=LAST, prediction_type=options.prediction)

    def forward(self, high: Tensor, enlarged: Tensor, generator: torch.Generator) -> Tensor:
        """The loss: the mean squared error of what the U-Net finds in noisy ``high``, given ``enlarged``."""
        steps = torch.randint(STEPS, (len(high),), generator=generator).to(high.device)
        noise = torch.randn(high.shape, generator=generator).to(high)
        noisy = self.noise.add_noise(high, noise, steps)
        sought = noise if self.prediction == "epsilon" else self.noise.get_velocity(high, noise, steps)
        return F.mse_loss(self.unet(torch.cat([enlarged, noisy], dim=1), steps).sample, sought)

    @torch.no_grad()
    def sample(self, enlarged: Tensor, steps: int, generator: torch.Generator) -> Tensor:
        """Images from noise, given the enlarged ones; in ``steps`` calls of the U-Net."""
        self.noise.set_timesteps(steps)
        x = torch.randn(enlarged.shape, generator=generator).to(enlarged)
        for step in self.noise.timesteps:
            predicted = self.unet(torch.cat([enlarged, x], dim=1), step.to(x.device)).sample
            x = self.noise.step(predicted, step, x, generator=generator).prev_sample
        return x


def unet(options: Namespace) -> Any:
    """diffusers' U-Net with its own attention, after each residual block of ``attention_sizes`` and in the middle. Its
    group norms have groups of four channels on the first level, and as many on the others."""
    sizes = [options.high_size >> level for level in range(len(options.channels))]
    kinds = ["Attn" * (size in options.attention_sizes) for size in sizes]
    return UNet2DModel(
        sample_size=options.high_size,
        in_channels=6,
        block_out_channels=options.channels,
        layers_per_block=options.residual_blocks,
        dropout=options.dropout,
        down_block_types=[f"{kind}DownBlock2D" for kind in kinds],
        up_block_types=[f"{kind}UpBlock2D" for kind in reversed(kinds)],
        norm_num_groups=options.channels[0] // 4,
        attention_head_dim=None,
    )


def replace_self_attentions(unet: Any, options: Namespace) -> None:
    levels = list(range(len(options.channels)))
    blocks = [*unet.down_blocks, unet.mid_block, *unet.up_blocks]
    slots = [
        (attentions, i, level)
        for block, level in zip(blocks, [*levels, levels[-1], *reversed(levels)], strict=True)
        for attentions in [getattr(block, "attentions", [])]
        for i in range(len(attentions))
    ]
    for layer, (attentions, i, level) in enumerate(slots):
        of_level = {
            "encoder_embed_dim": options.channels[level],
            "encoder_ffn_embed_dim": options.channels[level],
            "activation_dropout": options.dropout,
            "encoder_layers": len(slots),
            "max_source_positions": (options.high_size >> level) ** 2,
        }
        spec = AttentionSpec(Namespace(**{**vars(options), **of_level}), "encoder", layer, "noncausal self")
        attentions[i] = PixelAttention(attentions[i].group_norm, build_attention(spec))


class PixelAttention(nn.Module):
    """Attention between the pixels of feature maps, in the place of diffusers': ``x + attention(norm(x))``."""

    def __init__(self, norm: nn.Module, attention: nn.Module) -> None:
        super().__init__()
        self.norm, self.attention = norm, attention

    def forward(self, x: Tensor, temb: Tensor | None = None) -> Tensor:
        """(B, C, h, w) to (B, C, h, w), row by row; ``temb`` is not used."""
        y = self.norm(x).flatten(2).permute(2, 0, 1)
        out: Tensor = self.attention(y, y, y)[0]
        return x + out.permute(1, 2, 0).reshape(x.shape)
