"""Training loop: trainer, training step, optimizer and EMA, checkpoints, tracking, process group."""
