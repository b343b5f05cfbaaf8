"""The training loop: trainer, step, optimization, run folder, tracking, distributed processes."""
