"""Runs: when jobs are due, by whom they are run, and how a run goes."""
