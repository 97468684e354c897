"""Environments: Python interpreters with packages of a function's own, each made once per content, in the home."""
