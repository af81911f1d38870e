"""What a search step does with the probabilities of its words, in C++; see ``search/search_steps.py``."""

from pathlib import Path

SOURCE = Path(__file__).with_name("kernels.cpp")
