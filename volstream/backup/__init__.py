"""Backups of a home, made while others write it, and homes made from them."""
