"""What a home consists of: each kind of object, with its options described once.

The dataclasses of a module are the description. Fields annotated with an :class:`~.options.Option` are what
a user can say of an object; those of the class that is named like the kind are what the catalog stores.
"""

from volstream.base.definitions.job import (
    NO_SCHEDULE,
    PAUSED_BY_USER,
    DynamicJob,
    DynamicJobSpec,
    DynamicTableOptions,
    FileFormat,
    FileJob,
    FileJobOptions,
    FileJobSpec,
    FileOrder,
    FunctionOptions,
    Job,
    JobDefinition,
    JobOptions,
    JobSpec,
    JobState,
    LoadKeys,
    NewColumns,
    OnMove,
    SetOptions,
    StatementJob,
    StatementJobSpec,
    Trigger,
    TriggerKind,
    Write,
)
from volstream.base.definitions.objects import (
    DEFAULT_VIRTUAL_CLUSTER,
    Connection,
    ConnectionOptions,
    ConnectionType,
    DefinableSource,
    Function,
    FunctionDefinition,
    QueueType,
    Source,
    SourceDefinition,
    SourceKind,
    SourceType,
    Stream,
    StreamMode,
    StreamSpec,
    TableDefinition,
    Volume,
    VolumeSpec,
)
