"""Experiments: sweeps over variants and seeds, evaluation of their targets, comparison of the results."""
