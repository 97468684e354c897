"""Alembic's entry: runs the migrations on the connection that ``database.py`` hands over."""

from alembic import context

from volstream.catalog.tables import metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True, transactional_ddl=True
)
context.run_migrations()
