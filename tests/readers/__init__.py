"""Other readers and writers of Delta tables: ``foreign`` runs with their packages, in environments of their own."""
