"""What every folder may use: arguments, files, lines, progress, metrics. Imports nothing of the package."""
