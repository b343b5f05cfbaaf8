"""Figures of losses and of training, after the papers: plain arrays first, then the plot."""
