"""The command line. Commands are thin: options in, one operation of a :class:`~volstream.api.session.Session`, output."""

from volstream.cli.main import main

__all__ = ["main"]
