"""Everything that reaches into fairseq's insides: the folder to open when fairseq changes. Imports ``common``, ``text``
and ``ops``; ``plugin.py`` says which changes are made."""

from amlp_fairseq.common import versions
from amlp_fairseq.compat import fairseq_import

versions.check()
fairseq_import.require()
