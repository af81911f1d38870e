"""Search step in C++, from log-probabilities of words to the next hypotheses; see ``search/search_steps.py``."""

from pathlib import Path

SOURCE = Path(__file__).with_name("kernels.cpp")
