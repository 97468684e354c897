"""What a package needs to add a queue, a store, a provider or a receiver of alerts; a reader needs only PyArrow. The guide is
``docs/guides/plugins.md``; suites of tests are in ``volstream.testing``, errors in ``volstream.errors``.
"""

from __future__ import annotations

from volstream.base.model.hints import KeyHint, ObjectHint, Rejection, SubtreeHint
from volstream.base.model.paths import FileInfo, Finding, Selection, content_type, is_utf8, printable
from volstream.base.model.work import Check, CheckState
from volstream.base.privacy import resolve_references as resolve
from volstream.files.providers.access import Access, Keys
from volstream.files.providers.base import Provider, RequiredAccess
from volstream.files.queues.base import EventQueue, Message, QueueSpec, QueueState
from volstream.files.queues.bodies import parse
from volstream.files.queues.remote import Delivery, RemoteQueue
from volstream.files.storage.base import HasDetails, KeyOrdered, ObjectStore, TakesOutputs, Writable
from volstream.files.storage.buckets import BucketStore, Content, Found, PartedStore

__all__ = [
    "Access",
    "BucketStore",
    "Check",
    "CheckState",
    "Content",
    "Delivery",
    "EventQueue",
    "FileInfo",
    "Finding",
    "Found",
    "HasDetails",
    "KeyHint",
    "KeyOrdered",
    "Keys",
    "Message",
    "ObjectHint",
    "ObjectStore",
    "PartedStore",
    "Provider",
    "QueueSpec",
    "QueueState",
    "Rejection",
    "RemoteQueue",
    "RequiredAccess",
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
