"""Pairs of image and text encoder from transformers: CLIP, SigLIP and SigLIP 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from export.model_file import LIBRARIES
from export.pair import Encoder, Pair
from export.published_configs import card_licence, transformers_preprocess
from retrieval.errors import InputError, LookalikeError
from retrieval.files import now
from retrieval.machine.extras import needs
from retrieval.machine.installation import versions
from retrieval.model.hub import cache_while_unreachable
from retrieval.model.text_encoder import TextInput

# Their text encoders need no mask: CLIP reads the first closing token and what is before it, SigLIP was
# trained with its padding. SigLIP 2 for fixed sizes has the type siglip.
_TYPES = ("clip", "metaclip_2", "siglip")


def transformers_pair(name: str) -> Pair:
    """Load a pair.

    Args:
        name: USER/NAME on the Hugging Face hub, or a folder in the same layout.

    Raises:
        InputError: Not one of the supported types, or a preprocessing that is not supported.
        LookalikeError: transformers is not installed, or the model cannot be loaded.
    """
    try:
        from transformers import AutoConfig, AutoModel
        from transformers.image_processing_base import ImageProcessingMixin
    except ModuleNotFoundError as error:
        raise LookalikeError(f"--from transformers: {needs('transformers')}") from error
    try:
        with cache_while_unreachable(f"--from transformers:{name}"):
            kind = str(AutoConfig.from_pretrained(name).model_type)
            if kind not in _TYPES:
                raise InputError(f"--from transformers:{name}: type {kind}, supported: {', '.join(_TYPES)}")
            model = AutoModel.from_pretrained(name, dtype="float32").eval()
            tokenizer = _tokenizer(name)
            facts, _ = ImageProcessingMixin.get_image_processor_dict(name)
    except LookalikeError:
        raise
    except Exception as error:  # transformers, torch and the hub raise classes of their own
        reason = " ".join(str(error).split())[:200]
        raise LookalikeError(f"--from transformers:{name}: cannot be loaded ({reason})") from error
    length = int(model.config.text_config.max_position_embeddings)
    bias = getattr(model, "logit_bias", None)

    def tokenize(texts: Any) -> Any:
        options = {"padding": "max_length", "truncation": True, "max_length": length}
        return tokenizer(list(texts), return_tensors="np", **options)["input_ids"].astype("int64")

    return Pair(
        source=f"transformers:{name}",
        image=Encoder(model, "get_image_features"),
        text=Encoder(model, "get_text_features"),
        preprocess=transformers_preprocess(facts, name),
        text_input=TextInput(
            context_length=length,
            pad_id=int(tokenizer.pad_token_id),
            pad_side=str(tokenizer.padding_side),
            logit_scale=model.logit_scale.exp().item(),
            logit_bias=None if bias is None else bias.item(),
        ),
        tokenizer=tokenizer.backend_tokenizer,
        tokenize=tokenize,
        facts={
            "license": _licence(name),
            **({} if Path(name).is_dir() else {"weights_address": name}),
            "created": now(),
            "versions": versions((*LIBRARIES, "transformers", "tokenizers")),
        },
    )


def _tokenizer(name: str) -> Any:
    """Return the tokenizer, from its `tokenizer.json`."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (ImportError, ValueError):  # such as SigLIP's, which is written for sentencepiece
        return PreTrainedTokenizerFast.from_pretrained(name)
    return tokenizer if tokenizer.is_fast else PreTrainedTokenizerFast.from_pretrained(name)


def _licence(name: str) -> str | None:
    """Return the licence on the model card; `None` if there is none."""
    if Path(name).is_dir():
        return card_licence(Path(name, "README.md"))
    try:
        from huggingface_hub import hf_hub_download

        return card_licence(Path(hf_hub_download(name, "README.md")))
    except Exception:  # the hub raises many classes; the weights are there, their card is not
        return None
