"""Text encoder of a model archive: texts in, unit vectors in the space of the images out."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from retrieval.errors import InputError, LookalikeError
from retrieval.machine.extras import needs
from retrieval.model.archive import TEXT, TOKENIZER, ModelArchive
from retrieval.model.interruption import interruptible, run
from retrieval.model.runtime import Runtime
from retrieval.model.sessions import open_session, reason

TOKENS, MASK = "tokens", "mask"
"""Inputs of the graph, int64 [N, L]; it may be without the mask, which is 1 for tokens and 0 for padding."""
PROPERTY = "lookalike.text"
_BATCH = 32
_PAD_SIDES = ("right", "left")


@dataclasses.dataclass(frozen=True)
class TextInput:
    """Input of a text encoder, as in the metadata `lookalike.text` of its graph.

    Lower case, the handling of spaces and the special tokens are in the tokenizer.

    Attributes:
        context_length: Number L of tokens: shorter texts are padded, longer ones truncated.
        pad_id: Id of the padding token.
        pad_side: "right" or "left".
        prefix: Put before each text, such as "query: ".
        suffix: Put after each text.
        logit_scale: Published factor from cosine to logit; `None` if there is none.
        logit_bias: Published offset of the logit; `None` if there is none.

    Raises:
        InputError: A value is out of range.
    """

    context_length: int
    pad_id: int = 0
    pad_side: str = "right"
    prefix: str = ""
    suffix: str = ""
    logit_scale: float | None = None
    logit_bias: float | None = None

    def __post_init__(self) -> None:
        if not (self.context_length >= 1 and self.pad_id >= 0 and self.pad_side in _PAD_SIDES):
            raise InputError(
                "text input: must have context_length >= 1, pad_id >= 0 and pad_side right or left, got "
                f"{self.context_length}, {self.pad_id}, {self.pad_side!r}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TextInput:
        """Inverse of `to_dict`; raise an `InputError` for an unknown key."""
        unknown = set(values) - {field.name for field in dataclasses.fields(cls)}
        if unknown:
            raise InputError(f"text input: unknown key {sorted(unknown)[0]!r}")
        return cls(**values)


class TextTokenizer:
    """Tokenizer of a text encoder: texts to ids. Thread-safe.

    Args:
        contents: Contents of `tokenizer.json`.
        text_input: Input of the text encoder.
        where: Start of the error messages.

    Attributes:
        vocabulary_size: Number of tokens that it knows.

    Raises:
        InputError: `tokenizers` is not installed, or the contents are damaged.
    """

    def __init__(self, contents: bytes, text_input: TextInput, where: str) -> None:
        try:
            from tokenizers import Tokenizer
        except ModuleNotFoundError as error:
            raise InputError(f"{where}: text search {needs('tokenizers')}") from error
        try:
            tokenizer = Tokenizer.from_str(contents.decode())
        except Exception as error:  # tokenizers raises plain exceptions
            raise InputError(f"{where}: {TOKENIZER} is damaged ({reason(error)}); export it again") from error
        self._input = text_input
        self.vocabulary_size = int(tokenizer.get_vocab_size())
        tokenizer.enable_truncation(text_input.context_length)
        tokenizer.enable_padding(
            direction=text_input.pad_side,
            pad_id=text_input.pad_id,
            pad_token=tokenizer.id_to_token(text_input.pad_id) or "",
            length=text_input.context_length,
        )
        self._tokenizer = tokenizer

    def __call__(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the token ids and the mask of texts, each int64 [N, L].

        A text that is too long loses the tokens at its end, before the closing special token.
        """
        shape = (len(texts), self._input.context_length)
        whole = (f"{self._input.prefix}{text}{self._input.suffix}" for text in texts)
        # One by one: the threads of `encode_batch` do not survive a fork.
        encoded = [self._tokenizer.encode(text) for text in whole]
        ids = np.array([one.ids for one in encoded], np.int64).reshape(shape)
        mask = np.array([one.attention_mask for one in encoded], np.int64).reshape(shape)
        return ids, mask


class TextEncoder:
    """Text encoder of a model archive, loaded for inference. Thread-safe.

    Args:
        archive: Model archive.
        runtime: Device and provider.
        dim: Length D of an embedding of the image encoder.

    Attributes:
        text_input: Input of the graph.
        tokens: Tokenizer.

    Raises:
        InputError: `tokenizers` is not installed, or the archive is damaged.
    """

    def __init__(self, archive: ModelArchive, runtime: Runtime, dim: int) -> None:
        self._path = archive.path
        self._dim = dim
        self._session = open_session(self._path, archive.read(TEXT), runtime)
        properties = self._session.get_modelmeta().custom_metadata_map
        try:
            self.text_input = TextInput.from_dict(json.loads(properties[PROPERTY]))
        except (InputError, KeyError, TypeError, ValueError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise InputError(
                f"{self._path}: the metadata of {TEXT} is damaged ({what}); export it again"
            ) from error
        self._inputs = {end.name for end in self._session.get_inputs()}
        outputs = {end.name for end in self._session.get_outputs()}
        if not ({TOKENS} <= self._inputs <= {TOKENS, MASK} and "embedding" in outputs):
            got = f"{', '.join(sorted(self._inputs))} in and {', '.join(sorted(outputs))} out"
            raise InputError(f"{self._path}: {TEXT} should have {TOKENS} in and embedding out, but has {got}")
        self.tokens = TextTokenizer(archive.read(TOKENIZER), self.text_input, str(self._path))

    @interruptible
    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return the embeddings of texts, of unit length, float32 [N, D].

        Raises:
            InputError: A text is empty, or the model knows nothing of it.
            LookalikeError: The graph fails on this machine.
        """
        for number, text in enumerate(texts, 1):
            if not text.strip():
                which = f"text {number} of {len(texts)}" if len(texts) > 1 else "text"
                raise InputError(f"{which}: empty; give some words")
        parts = [self._run(texts[at : at + _BATCH]) for at in range(0, len(texts), _BATCH)]
        for text, vector in zip(texts, (vector for part in parts for vector in part), strict=True):
            if not vector.any():
                raise InputError(f"{text!r}: nothing of it is in the titles that the model has learned from")
        return np.concatenate(parts) if parts else np.empty((0, self._dim), np.float32)

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Return the number of tokens of all texts as the graph gets them: truncated, with special tokens."""
        return int(self.tokens(texts)[1].sum())

    def _run(self, texts: Sequence[str]) -> np.ndarray:
        ids, mask = self.tokens(texts)
        feeds = {TOKENS: ids, MASK: mask}
        try:
            (found,) = run(self._session, ["embedding"], {name: feeds[name] for name in self._inputs})
        except Exception as error:  # ONNX Runtime raises its own classes, which differ between versions
            what = f"the text encoder failed on {len(texts)} texts ({reason(error)})"
            raise LookalikeError(f"{self._path}: {what}; export it again") from error
        if found.shape != (len(texts), self._dim):
            got = f"{list(found.shape)} for {len(texts)} texts, but the images have dim {self._dim}"
            raise InputError(f"{self._path}: the output of {TEXT} is {got}; export it again")
        vectors: np.ndarray = found
        return vectors
