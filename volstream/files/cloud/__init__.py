"""Access to the cloud providers: credentials, roles and permissions. What a store or a queue does is not here."""
