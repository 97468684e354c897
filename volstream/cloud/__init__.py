"""How the cloud providers are reached: credentials and roles, and what they allow. What a store or a queue does is not here."""
