"""The storm: a home under random churn whose processes are killed at random moments, and whose tables must be true afterwards.

``python -m tests.storm --seed 1 --kills 1000``, or ``make storm SEED=1 KILLS=1000``. What happens follows from the seed
(``schedule``), to whom it happens from what runs at that moment (``victims``); ``truth`` compares a home with its files.
"""
