"""Milvus."""
