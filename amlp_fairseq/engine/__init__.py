"""The engine in C++: models decoded on CPUs without PyTorch. Imports ``common`` and ``text``."""
