"""Set before any test module is imported."""

import os

import torch

# Triton's kernels run on a GPU or, for tests, in Triton's interpreter on a CPU. Triton reads this variable when it is
# imported, before any test could set it. Where there is a GPU the real kernels are what must be tested.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
