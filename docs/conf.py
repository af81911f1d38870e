"""The site of these pages, see scripts/build_docs.sh. Its source folder is the checkout, so that all links hold."""

from __future__ import annotations

project = "amlp-fairseq"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "examples/*/README.md", "CONTRIBUTING.md"]
myst_heading_anchors = 3
suppress_warnings = ["toc.no_title"]  # results/parameters.md is what the command prints
autodoc_typehints = "description"
html_theme = "furo"
html_title = "amlp-fairseq"
