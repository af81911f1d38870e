"""Searches for the best output of a model."""
