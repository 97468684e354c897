"""For all tests: logs of every level, so that a test may look for any line; no time limits for generated examples."""

import hypothesis

from volstream import log

log.configure("debug")

# A deadline asserts how fast the machine is.
hypothesis.settings.register_profile("volstream", deadline=None)
hypothesis.settings.load_profile("volstream")
