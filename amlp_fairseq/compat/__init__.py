"""Everything that reaches into fairseq's insides: the folder to open when fairseq changes."""

from amlp_fairseq.compat import fairseq_present

fairseq_present.require()

from amlp_fairseq.compat import (  # noqa: E402
    bf16,
    checkpoint_options,
    numpy_names,
    processes,
    safe_checkpoints,
    whole_copies,
)


def install() -> None:
    """Mend what breaks fairseq on this stack, or breaks its users' work; each file says what it changes."""
    for fix in (numpy_names, bf16, processes, whole_copies, safe_checkpoints, checkpoint_options):
        fix.install()
