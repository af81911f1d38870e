"""Processes of torchrun that fairseq would not join."""

from __future__ import annotations

import pytest
from fairseq.dataclass.configs import FairseqConfig
from fairseq.distributed import utils as distributed_utils
from torch.multiprocessing import ProcessRaisedException

import amlp_fairseq.plugin  # noqa: F401  (checks them)
from amlp_fairseq.compat.distributed import diverged_message

TORCHRUN = {"MASTER_ADDR": "localhost", "MASTER_PORT": "1", "WORLD_SIZE": "4", "RANK": "1"}


@pytest.mark.parametrize("missing", [None, *TORCHRUN])
def test_only_processes_of_torchrun_must_be_joined(missing: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    ran: list[FairseqConfig] = []
    cfg = FairseqConfig()
    cfg.distributed_training.distributed_world_size = 1  # also where there are GPUs
    if missing is None:
        with pytest.raises(ValueError, match="torchrun has started 4 processes, --distributed-world-size is 1"):
            distributed_utils.call_main(cfg, ran.append)
        assert not ran
    else:
        monkeypatch.delenv(missing)
        distributed_utils.call_main(cfg, ran.append)
        assert ran == [cfg]


def test_the_line_of_a_process_that_fairseq_has_started() -> None:
    text = "\n\n-- Process 0 terminated with the following error:\n{}: it is infinite\n"
    for name, told in (("amlp_fairseq.compat.trainer.Diverged", "it is infinite"), ("ValueError", None)):
        assert diverged_message(ProcessRaisedException(text.format(name), 0, 1)) == told
