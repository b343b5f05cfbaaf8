"""Galleries whose items are in a database server: PostgreSQL, Qdrant or Milvus."""
