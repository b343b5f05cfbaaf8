"""Training: data sets, batches, losses and the loop. Sub-modules that need torch import it themselves."""
