"""One thread for every test here: threads of small networks only get in each other's way."""

import torch

torch.set_num_threads(1)
