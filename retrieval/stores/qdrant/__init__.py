"""Qdrant, its server or its engine in this process."""
