"""Tokenizers of open_clip and transformers as tokenizers of the library tokenizers, with a proof."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from tokenizers.processors import TemplateProcessing

from export.sample_texts import SAMPLE_TEXTS
from export.text_cleaning import open_clip_cleaning
from retrieval.errors import LookalikeError

Tokenize = Callable[[Sequence[str]], np.ndarray]
"""Tokenizer of a library: texts to ids, int64 [N, L], padded and truncated as the model expects."""


def clip_tokenizer(simple: Any, cleaning: str) -> Tokenizer:
    """Return the equal of an `open_clip.tokenizer.SimpleTokenizer`, a byte-level BPE.

    Args:
        simple: The tokenizer.
        cleaning: Its cleaning, such as "lower".
    """
    tokenizer = Tokenizer(
        BPE(dict(simple.encoder), [tuple(pair) for pair in simple.bpe_ranks], end_of_word_suffix="</w>")
    )
    tokenizer.normalizer = Normalizers(open_clip_cleaning(cleaning))
    pattern = simple.pat.pattern.replace("<", r"\<")
    tokenizer.pre_tokenizer = PreTokenizers(
        [
            Split(Regex(f"(?i:{pattern})"), behavior="removed", invert=True),
            ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    names = {id: name for name, id in simple.encoder.items()}
    start, end = names[simple.sot_token_id], names[simple.eot_token_id]
    tokenizer.post_processor = TemplateProcessing(
        single=f"{start} $A {end}",
        special_tokens=[(start, simple.sot_token_id), (end, simple.eot_token_id)],
    )
    special = [AddedToken(names[id], normalized=False, special=True) for id in simple.all_special_ids]
    tokenizer.add_special_tokens(special)
    return tokenizer


def with_cleaning(tokenizer: Tokenizer, cleaning: str) -> Tokenizer:
    """Return a tokenizer that cleans texts as open_clip does before its own normalizer."""
    steps = open_clip_cleaning(cleaning)
    own = tokenizer.normalizer
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.normalizer = Normalizers([*steps, own] if own is not None else steps)
    return copy


def without_closing_token(tokenizer: Tokenizer, closing: str) -> Tokenizer:
    """Return a tokenizer whose closing special token has the id 0, as `strip_sep_token` of open_clip."""
    facts = json.loads(tokenizer.to_str())
    facts["post_processor"]["special_tokens"][closing]["ids"] = [0]
    return Tokenizer.from_str(json.dumps(facts))


def check_tokens(name: str, found: Tokenize, expected: Tokenize) -> None:
    """Compare the ids of the sample texts.

    Args:
        name: Name of the model, for the message.
        found: Tokenizer of the archive.
        expected: Tokenizer of the library.

    Raises:
        LookalikeError: A text has other ids.
    """
    ours, theirs = found(SAMPLE_TEXTS), expected(SAMPLE_TEXTS)
    if ours.shape != theirs.shape:
        raise LookalikeError(
            f"{name}: its tokenizer gives {theirs.shape[1]} tokens a text, tokenizer.json {ours.shape[1]}; "
            "this tokenizer is not supported"
        )
    wrong = np.flatnonzero((ours != theirs).any(1))
    if len(wrong):
        texts = ", ".join(repr(SAMPLE_TEXTS[i][:40]) for i in wrong[:3])
        raise LookalikeError(
            f"{name}: tokenizer.json gives other tokens than the library for {len(wrong)} of "
            f"{len(SAMPLE_TEXTS)} texts, such as {texts}; this tokenizer is not supported"
        )
