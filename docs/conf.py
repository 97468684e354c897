"""Sphinx: the pages of this folder as a site. ``make docs``."""

project = "volstream"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "volstream"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
#: The README is beside this folder: its links are checked by a test.
suppress_warnings = ["myst.xref_missing"]
