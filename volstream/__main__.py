"""``python -m volstream``: the command line."""

from volstream.cli import main

main()
