"""Choice of an operator's implementation: PyTorch or Triton kernels."""

from __future__ import annotations

import logging
import os
from functools import cache
from importlib.util import find_spec

import torch

from amlp_fairseq.common.versions import installed
from amlp_fairseq.engine import isa

BACKENDS = isa.BACKENDS
#: Environment variable with the meaning of ``auto``, one of ``BACKENDS``.
VARIABLE = isa.BACKEND
#: Minimum compute capability of NVIDIA GPUs for the kernels: Ampere.
CAPABILITY = (8, 0)
#: Determined at import: ``torch.compile`` cannot trace ``find_spec``.
TRITON_INSTALLED = find_spec("triton") is not None


def _interpreter_obstacle() -> str:
    """Reason why Triton's interpreter cannot run, "" if it can."""
    triton, numpy = installed("triton"), installed("numpy")
    if triton and numpy and triton < (3, 7) and numpy >= (2, 4):
        return f"the interpreter of triton {triton[0]}.{triton[1]} needs numpy < 2.4, not {numpy[0]}.{numpy[1]}"
    return ""


#: Reason why Triton's interpreter cannot run, "" if it can.
INTERPRETER_OBSTACLE = _interpreter_obstacle()

logger = logging.getLogger(__name__)


def choose_backend(requested: str, device: torch.device, operator: str, limit: str = "") -> str:
    """Choose the implementation of an operator, ``torch`` or ``triton``.

    Triton runs on CUDA devices from Ampere on, and on CPU tensors when ``TRITON_INTERPRET=1`` was set before it was
    imported.

    Args:
        requested: one of ``BACKENDS``; ``auto`` is replaced by the environment variable ``AMLP_FAIRSEQ_BACKEND`` if
            set, else means Triton on CUDA if it is installed, and PyTorch otherwise.
        device: device of the operator's tensors.
        operator: name of the operator, for messages.
        limit: reason why its kernels do not support these inputs; "" if they do.

    Raises:
        ValueError: for an unknown backend.
        RuntimeError: if ``triton`` is requested and cannot run.
    """
    origin = "backend"
    if requested == "auto" and VARIABLE in os.environ:
        origin, requested = VARIABLE, os.environ[VARIABLE]
    if requested not in BACKENDS:
        raise ValueError(f"{operator}: {origin} {requested!r} is unknown; choose one of {', '.join(BACKENDS)}")
    if requested == "torch":
        return "torch"
    obstacle = _triton_obstacle(device)
    if requested == "triton":
        if obstacle or limit:
            raise RuntimeError(f"{operator}: {origin} 'triton' cannot run: {obstacle or limit}")
        return "triton"
    # The interpreter is for tests: auto never chooses it.
    reason = obstacle or ("TRITON_INTERPRET is set, but only for tests" if device.type == "cpu" else limit)
    choice = "torch" if reason else "triton"
    if not torch.compiler.is_compiling():
        _log_choice(operator, choice, device.type, reason)
    return choice


def _triton_obstacle(device: torch.device) -> str:
    """Reason why Triton cannot run on a device, "" if it can."""
    if not TRITON_INSTALLED:
        return "the package triton is not installed"
    if device.type == "cuda":
        return _gpu_obstacle(device)
    if device.type == "cpu" and interpreting():
        return INTERPRETER_OBSTACLE
    return f"the tensors are on {device.type}, not on a CUDA device"


def _gpu_obstacle(device: torch.device) -> str:
    """Reason not to run the kernels on a GPU, "" if there is none.

    Triton supports older NVIDIA GPUs, but emulates bfloat16 there, and the kernels spill registers.
    """
    if torch.version.hip:
        return ""
    gpu = torch.cuda.get_device_properties(device)
    if (gpu.major, gpu.minor) >= CAPABILITY:
        return ""
    needed = ".".join(map(str, CAPABILITY))
    return f"{gpu.name} has compute capability {gpu.major}.{gpu.minor}, the kernels need {needed}"


def interpreting() -> bool:
    """True if Triton's kernels run in its interpreter on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def _log_choice(operator: str, choice: str, device: str, reason: str) -> None:
    logger.info("%s runs on %s for %s tensors%s", operator, choice, device, f" ({reason})" if reason else "")
