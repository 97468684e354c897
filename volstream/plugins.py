"""What a package needs to add a queue, a store or a receiver of alerts. The guide is ``docs/guides/plugins.md``; suites of tests
are in ``volstream.testing``, errors in ``volstream.errors``.
"""

from __future__ import annotations

from volstream.base.model.files import FileInfo, Finding, is_utf8, printable
from volstream.base.model.hints import KeyHint, ObjectHint, Rejection, SubtreeHint
from volstream.base.model.selection import Selection
from volstream.base.references import resolve
from volstream.files.queues.base import EventQueue, Message, QueueSpec
from volstream.files.queues.webhook import parse
from volstream.files.storage.base import HasDetails, KeyOrdered, ObjectStore, TakesOutputs, Writable
from volstream.files.storage.types import content_type

__all__ = [
    "EventQueue",
    "FileInfo",
    "Finding",
    "HasDetails",
    "KeyHint",
    "KeyOrdered",
    "Message",
    "ObjectHint",
    "ObjectStore",
    "QueueSpec",
    "Rejection",
    "Selection",
    "SubtreeHint",
    "TakesOutputs",
    "Writable",
    "content_type",
    "is_utf8",
    "parse",
    "printable",
    "resolve",
]
