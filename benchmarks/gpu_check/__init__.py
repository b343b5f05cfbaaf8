"""Everything that only a GPU can show, in one table: `make gpu-check`. No network is needed."""
