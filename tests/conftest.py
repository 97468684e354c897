"""For all tests: logs of every level, so that a test may look for any line."""

from volstream import log

log.configure("debug")
