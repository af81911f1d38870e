"""``combine_words`` of ``search/search_steps.py`` in C++, where nothing is forbidden."""

from pathlib import Path

SOURCE = Path(__file__).with_name("kernels.cpp")
