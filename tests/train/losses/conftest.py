"""One thread: the batches are tiny, and threads would only wait for each other."""

import torch

torch.set_num_threads(1)
