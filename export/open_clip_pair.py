"""Pairs of image and text encoder from open_clip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from export.model_file import LIBRARIES
from export.pair import Encoder, Pair
from export.published_configs import card_licence, open_clip_preprocess
from export.tokenizer_files import clip_tokenizer, with_cleaning, without_closing_token
from retrieval.errors import InputError, LookalikeError, did_you_mean
from retrieval.files import now
from retrieval.machine.extras import needs
from retrieval.machine.installation import versions
from retrieval.model.hub import cache_while_unreachable
from retrieval.model.text_encoder import TextInput

_SCHEMAS = ("hf-hub:", "local-dir:")
_CLEANINGS = ("lower", "whitespace", "canonicalize")


def open_clip_pair(name: str) -> Pair:
    """Load a pair.

    Args:
        name: ARCHITECTURE:WEIGHTS with a published tag or a file of weights; hf-hub:USER/NAME; or
            local-dir:FOLDER with `open_clip_config.json` and the weights.

    Raises:
        InputError: Unknown architecture or weights, or a tokenizer or preprocessing that is not supported.
        LookalikeError: open_clip is not installed, or the weights cannot be downloaded.
    """
    try:
        import open_clip
    except ModuleNotFoundError as error:
        raise LookalikeError(f"--from open-clip: {needs('open_clip')}") from error
    arch, weights, options = _parsed(name, open_clip)
    try:
        with cache_while_unreachable(f"--from open-clip:{name}"):
            model = open_clip.create_model(arch, weights, require_pretrained=True, **options).eval()
            tokenizer = open_clip.get_tokenizer(arch)
    except LookalikeError:
        raise
    except Exception as error:  # open_clip, torch and the hub raise classes of their own
        reason = " ".join(str(error).split())[:200]
        raise LookalikeError(f"--from open-clip:{name}: cannot be loaded ({reason})") from error
    return pair_of_model(model, tokenizer, name, _licence(arch, weights, open_clip))


def pair_of_model(model: Any, tokenizer: Any, name: str, licence: str | None) -> Pair:
    """Return the pair of a model and tokenizer of open_clip.

    Args:
        model: Model in evaluation mode on the CPU.
        tokenizer: Its tokenizer.
        name: Name for the provenance.
        licence: Licence of the weights; `None` if unknown.

    Raises:
        InputError: The tokenizer or the preprocessing is not supported.
    """
    import open_clip

    ours, pad_id, pad_side = _tokenizer(tokenizer, name)
    bias = getattr(model, "logit_bias", None)
    model.output_dict = False
    return Pair(
        source=f"open_clip:{name}",
        image=Encoder(model, "encode_image"),
        text=Encoder(model, "encode_text"),
        preprocess=open_clip_preprocess(open_clip.get_model_preprocess_cfg(model), name),
        text_input=TextInput(
            context_length=int(tokenizer.context_length),
            pad_id=pad_id,
            pad_side=pad_side,
            logit_scale=model.logit_scale.exp().item(),
            logit_bias=None if bias is None else bias.item(),
        ),
        tokenizer=ours,
        tokenize=lambda texts: tokenizer(list(texts)).numpy(),
        facts={
            "license": licence,
            "created": now(),
            "versions": versions((*LIBRARIES, "open-clip-torch", "transformers", "tokenizers")),
        },
    )


def _parsed(name: str, open_clip: Any) -> tuple[str, str | None, dict[str, Any]]:
    """Return architecture, weights and further options of `create_model`."""
    if name.startswith(_SCHEMAS):
        return name, None, {}
    arch, _, weights = name.partition(":")
    known = open_clip.list_models()
    if arch not in known:
        hint = did_you_mean(arch, known, "see `open_clip.list_models()`")
        raise InputError(f"--from open-clip: unknown architecture {arch!r}; {hint}")
    tags = open_clip.list_pretrained_tags_by_model(arch)
    is_file = Path(weights).is_file()
    if weights not in tags and not is_file:
        some = ", ".join(tags) or "none, so give a file"
        raise InputError(
            f"--from open-clip:{name}: needs weights, as {arch}:TAG or {arch}:FILE; tags: {some}"
        )
    if is_file:
        return arch, weights, {}
    # The activation function belongs to the weights: OpenAI's need QuickGELU, whatever the architecture says.
    needs = bool(open_clip.get_pretrained_cfg(arch, weights).get("quick_gelu", False))
    return arch, weights, {"force_quick_gelu": needs}


def _tokenizer(theirs: Any, name: str) -> tuple[Tokenizer, int, str]:
    """Return the equal of a tokenizer of open_clip, with the id and the side of the padding."""
    from open_clip.tokenizer import HFTokenizer, SimpleTokenizer, get_clean_fn

    cleaning = next(
        (kind for kind in _CLEANINGS if get_clean_fn(kind) is getattr(theirs, "clean_fn", None)), ""
    )
    if isinstance(theirs, SimpleTokenizer) and cleaning and theirs.reduction_fn is None:
        return clip_tokenizer(theirs, cleaning), 0, "right"
    inner: Any = getattr(theirs, "tokenizer", None)
    if isinstance(theirs, HFTokenizer) and cleaning and theirs.tokenizer_mode == "" and inner.is_fast:
        ours = with_cleaning(inner.backend_tokenizer, cleaning)
        if theirs.strip_sep_token:
            ours = without_closing_token(ours, inner.sep_token)
        return ours, int(inner.pad_token_id), str(inner.padding_side)
    raise InputError(f"--from open-clip:{name}: its tokenizer is not supported; use another model")


def _licence(arch: str, weights: str | None, open_clip: Any) -> str | None:
    """Return the licence on the model card of the weights; `None` if there is none."""
    if arch.startswith("local-dir:"):
        return card_licence(Path(arch.removeprefix("local-dir:"), "README.md"))
    if weights == "openai":
        return "mit"
    tag = open_clip.get_pretrained_cfg(arch, weights or "").get("hf_hub", "") if weights else ""
    repository = arch.removeprefix("hf-hub:") if weights is None else "/".join(tag.split("/")[:2])
    if not repository:
        return None
    try:
        from huggingface_hub import hf_hub_download

        return card_licence(Path(hf_hub_download(repository, "README.md")))
    except Exception:  # the hub raises many classes; the weights are there, their card is not
        return None
