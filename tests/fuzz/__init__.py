"""Inputs that nobody means, for everything that reads text: answered by a result or an error of volstream's, never by a traceback.

``python -m tests.fuzz --seed 1 --inputs 1000000``. Inputs are real ones, mutated (``mutate``): what is nearly right gets farther into
a parser than noise. ``targets`` has what reads them.
"""
