"""Makes the tables of a storm's processes forget old versions after a few commits, not hundreds, and jobs rest within a second."""

import sys
from datetime import timedelta
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_EARLY: dict[str, dict[str, Any]] = {
    "volstream.tables.delta.history": {"VERSIONS": 3, "READING": timedelta(minutes=5), "_FORGOTTEN": 2},
    "volstream.tables.delta.commits": {"_CHECKPOINT_COMMITS": 2},
    "volstream.tables.delta.upkeep": {"_CLEAN_COMMITS": 4},
    "volstream.server.daemon.jobs": {"_REST_SECONDS": (0.3, 2.0), "_COMPACT_SECONDS": 0.5},
}


class _Early:
    """Changes constants of modules once these are imported."""

    @staticmethod
    def find_spec(name: str, path: list[str] | None, _: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name in _EARLY else None
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def changed(module: ModuleType) -> None:
                execute(module)
                assert vars(module).keys() >= _EARLY[name].keys()
                vars(module).update(_EARLY[name])

            spec.loader.exec_module = changed  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Early)  # type: ignore[arg-type]
