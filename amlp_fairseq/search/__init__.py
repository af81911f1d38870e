"""Searches for the best output of a model: multi-word beam search and iterative refinement."""
