"""A batch: staged by functions on workers, committed with its files, its failures and its ledger."""
