"""Pretrained weights: loading from a safetensors file or a download, without executing code in it."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from math import isqrt
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from retrieval.errors import InputError, LookalikeError
from train.models.feature_extractor import tensors_of
from train.models.lora import own_name


def read_weights(file: str) -> dict[str, Tensor]:
    """Read the tensors of a .safetensors file, by name.

    Raises:
        InputError: Not a readable .safetensors file.
    """
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise InputError(f"model.weights: {file}: not a readable safetensors file ({error})") from error


def digest_of_weights(network: nn.Module) -> str:
    """Return the fingerprint of all weights and statistics of a network, 32 hexadecimal digits.

    Adapters are left out, so that it is that of the network before they were added.
    """
    digest = hashlib.sha256()
    own = {own_name(name): value for name, value in network.state_dict().items() if ".lora_" not in name}
    for name, value in sorted(own.items()):
        digest.update(f"\0{name} {value.dtype} {list(value.shape)}\0".encode())
        digest.update(value.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


def download_weights(url: str) -> dict[str, Tensor]:
    """Download weights, check them against the digest in the file's name, and cache them by torch.hub."""
    return torch.hub.load_state_dict_from_url(url, map_location="cpu", check_hash=True, weights_only=True)


@contextmanager
def explain_download_errors(name: str) -> Iterator[None]:
    """Turn download errors into one message; redirect the library's output to stderr."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except UnpicklingError as error:
        raise LookalikeError(
            f"model.weights: the file of {name} contains more than weights, which may be code; give a "
            ".safetensors file"
        ) from error
    except (OSError, RuntimeError) as error:  # no network, 404; wrong digest, or none published
        reason = " ".join(str(error).split())[:160]
        raise LookalikeError(
            f"model.weights: weights of {name} cannot be downloaded ({reason}); give a .safetensors file"
        ) from error


def load_weights(
    network: nn.Module, known: Mapping[str, Tensor], weights: Mapping[str, Tensor], source: str
) -> None:
    """Load weights of the whole classifier into the network that was cut out of it.

    Position embeddings are resampled to another image size; half precision is converted to single.

    Args:
        network: Network to fill.
        known: Tensors of the whole classifier by name. Those outside `network` may be missing in `weights` or
            have another shape.
        weights: Weights by name.
        source: Origin of the weights, for error messages.

    Raises:
        InputError: A name is missing or unknown, or a shape differs.
    """
    held = {id(tensor) for tensor in tensors_of(network).values()}
    wanted = {name: tensor for name, tensor in known.items() if id(tensor) in held}
    # Old files lack the batch counters of batch norms; they are not used here.
    needed = {name for name in wanted if not name.endswith("num_batches_tracked")}
    fitted = {name: _fit(name, weights[name], wanted[name].shape) for name in weights.keys() & wanted.keys()}
    unfit = {name for name, value in fitted.items() if value.shape != wanted[name].shape}
    wrong = sorted((needed - weights.keys()) | (weights.keys() - known.keys()) | unfit)
    if wrong:
        raise InputError(f"model.weights: {source}: belongs to another network (at {wrong[0]!r})")
    with torch.no_grad():
        for name, value in fitted.items():
            wanted[name].copy_(value)


def _fit(name: str, value: Tensor, shape: torch.Size) -> Tensor:
    """Resample position embeddings [1, prefix + side^2, C] to another side; return other tensors as is."""
    if "pos_embed" not in name or value.ndim != 3 or value.shape == shape:
        return value
    from timm.layers import resample_abs_pos_embed  # slow to import

    side = isqrt(shape[1])
    prefix = shape[1] - side**2
    if isqrt(value.shape[1] - prefix) ** 2 != value.shape[1] - prefix:
        return value
    resampled: Tensor = resample_abs_pos_embed(value.float(), [side, side], num_prefix_tokens=prefix)
    return resampled
