"""Tools for every folder: arguments, files, lines, progress, metrics. Imports nothing of the package."""
