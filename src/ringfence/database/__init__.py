"""Where evidence, budgets and used-up grants are kept: one schema, in a SQLite file of the home or in PostgreSQL."""
