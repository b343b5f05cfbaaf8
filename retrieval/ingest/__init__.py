"""Ingestion: from image files, tables and archives to items of a gallery."""
