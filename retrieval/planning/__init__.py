"""Capacity planning: memory, disk, time and machines of index kinds and stores, before they are built."""
