"""Text encoder of letters: groups of neighbouring letters, of which each has a vector; the sum is the text's.

It needs no language model: what it knows are the titles that it learned from. Two titles are alike if they
share words or parts of words. A group is two to four letters within a text, across the ends of words too, and
the map from groups to image vectors is kernel ridge regression on the titles' groups, weighted by TF-IDF.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from retrieval.errors import InputError
from retrieval.machine.extras import needs
from retrieval.model.embedder import FORMAT_VERSION
from retrieval.model.text_encoder import MASK, PROPERTY, TOKENS, TextInput, TextTokenizer

if TYPE_CHECKING:
    from scipy.sparse import csr_array
    from tokenizers import Tokenizer

TEXT_INPUT = TextInput(
    context_length=256, prefix=" ", suffix=" "
)  # letters; a word begins and ends by a space
SIZES = (2, 3, 4)
RANK = 512  # of the map: held-out titles find as much as without a limit, to half a point
# A group has a number below the second prime, by way of one below the first: two moduli mix, so that few
# groups have the same number. The factor is the golden section of the first; no product is beyond int64.
_FACTOR, _MODULUS, _NUMBERS = 1_327_217_885, 2_147_483_647, 524_287
_CHUNK = 512  # texts in memory at a time
_OPSET, _IR = 20, 9
_UNKNOWN = "[UNK]"


class Letters:
    """Tokenizer of letters: texts to the numbers of their groups.

    Case, punctuation and forms of width make no difference.

    Args:
        texts: Texts whose letters it knows.

    Attributes:
        contents: Contents of `tokenizer.json`.

    Raises:
        InputError: `tokenizers` is not installed.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        cleaner = _tokenizer({"[PAD]": 0, _UNKNOWN: 1})
        self._normalizer = cleaner.normalizer
        letters = sorted({letter for text in texts for letter in self.cleaned(text)} | {" "})
        known = {"[PAD]": 0, _UNKNOWN: 1} | {letter: 2 + at for at, letter in enumerate(letters)}
        self.contents = _tokenizer(known).to_str().encode()
        self._tokens = TextTokenizer(self.contents, TEXT_INPUT, "text encoder")

    def cleaned(self, text: str) -> str:
        """Return a text as its words in lower case, between single spaces."""
        return str(self._normalizer.normalize_str(text)).strip()

    def groups(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return text and number of each group, int64 [K] each, in the order of the texts."""
        rows, numbers = [], []
        for start in range(0, len(texts), _CHUNK):
            ids, mask = self._tokens(texts[start : start + _CHUNK])
            for size in SIZES:
                found = np.full((len(ids), ids.shape[1] - size + 1), size, np.int64)
                for at in range(size):
                    found = (found * _FACTOR + ids[:, at : at + found.shape[1]]) % _MODULUS
                row, place = np.nonzero(mask[:, size - 1 :])
                rows.append(start + row)
                numbers.append(found[row, place] % _NUMBERS)
        return np.concatenate(rows), np.concatenate(numbers)


class Bags:
    """Groups of the letters of texts, counted.

    Args:
        letters: Tokenizer.
        texts: N texts.

    Attributes:
        numbers: Number of each group that occurs, int64 [V], ascending.
        counts: How often, [N, V].
    """

    def __init__(self, letters: Letters, texts: Sequence[str]) -> None:
        from scipy.sparse import csr_array  # slow to import

        rows, numbers = letters.groups(texts)
        self.numbers, columns = np.unique(numbers, return_inverse=True)
        shape = len(texts), len(self.numbers)
        self.counts: csr_array = csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)
        self.counts.sum_duplicates()

    def features(self, training: np.ndarray) -> tuple[csr_array, np.ndarray]:
        """Return the TF-IDF features of the texts, rows of unit length [N, V], and the weights, float64 [V].

        Args:
            training: Texts by which the weights are computed, int [n]; what only the others have weighs 0.
        """
        from scipy.sparse import diags_array

        occurs = (self.counts[training] > 0).sum(0)
        weights = np.where(occurs > 0, np.log((1 + len(training)) / (1 + occurs)) + 1, 0)
        weighted = self.counts @ diags_array(weights)
        norms = np.sqrt(weighted.power(2).sum(1))
        return (diags_array(1 / np.maximum(norms, 1e-12)) @ weighted).tocsr(), weights


def coefficients(
    features: csr_array, targets: np.ndarray, images: np.ndarray, strengths: Sequence[float]
) -> list[np.ndarray]:
    """Return the coefficients of kernel ridge regression, float64 [n, D], for each strength.

    Args:
        features: Rows of unit length, [n, V].
        targets: What a text should give, float64 [n, D].
        images: Number of images that a target is the mean of, int [n]: more of them weigh more.
        strengths: Strengths of the regularization.
    """
    from scipy.linalg import solve

    kernel = (features @ features.T).toarray()
    noise = np.diag(1 / np.sqrt(images))
    return [solve(kernel + strength * noise, targets, assume_a="pos") for strength in strengths]


@dataclass(frozen=True, eq=False)
class LetterEncoder:
    """Learned text encoder.

    Attributes:
        letters: Tokenizer.
        numbers: Number of each known group, int64 [V], ascending.
        table: Components of each, float16 [V, R].
        weight: Vectors of the components, float32 [R, D].
    """

    letters: Letters
    numbers: np.ndarray
    table: np.ndarray
    weight: np.ndarray

    @classmethod
    def learn(
        cls, letters: Letters, bags: Bags, targets: np.ndarray, images: np.ndarray, strength: float
    ) -> LetterEncoder:
        """Learn the encoder from texts; see `coefficients`."""
        everything = np.arange(len(targets))
        features, weights = bags.features(everything)
        (found,) = coefficients(features, targets, images, [strength])
        predicted = features @ (features.T @ found)
        _, _, axes = np.linalg.svd(predicted.T @ predicted, hermitian=True)
        weight = axes[:RANK]
        table = weights[:, None] * (features.T @ (found @ weight.T))
        table /= np.abs(table).max(initial=1e-12)  # the length of a sum does not matter
        return cls(letters, bags.numbers, table.astype(np.float16), weight.astype(np.float32))

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Return the embeddings of texts, float32 [N, D]; zero for a text of which no group is known."""
        rows, numbers = self.letters.groups(texts)
        places = np.searchsorted(self.numbers, numbers)
        places[places == len(self.numbers)] = 0
        known = self.numbers[places] == numbers
        sums = np.zeros((len(texts), self.table.shape[1]), np.float32)
        np.add.at(sums, rows[known], self.table[places[known]].astype(np.float32))
        vectors = sums @ self.weight
        found: np.ndarray = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return found

    def graph(self) -> bytes:
        """Return the ONNX model `text.onnx` of a model archive."""
        dim, length = self.weight.shape[1], TEXT_INPUT.context_length
        slots = np.zeros(_NUMBERS, np.int32)
        slots[self.numbers] = 1 + np.arange(len(self.numbers))  # row 0 stands for the unknown
        table = np.concatenate([np.zeros_like(self.table[:1]), self.table])
        constants: dict[str, np.ndarray] = {
            "slots": slots,
            "table": table,
            "weight": self.weight,
            "factor": np.array(_FACTOR, np.int64),
            "modulus": np.array(_MODULUS, np.int64),
            "numbers": np.array(_NUMBERS, np.int64),
            "none": np.array(0, np.int32),
            "letters": np.array([1], np.int64),
            "tiny": np.array(1e-12, np.float32),
        }
        nodes = [helper.make_node("Cast", [MASK], ["there"], to=TensorProto.BOOL)]

        def add(kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
            nodes.append(helper.make_node(kind, inputs, [output], **attributes))
            return output

        def part(source: str, start: int, end: int, output: str) -> str:
            for name, value in (("start", start), ("end", end)):
                constants[f"{output}.{name}"] = np.array([value], np.int64)
            return add("Slice", [source, f"{output}.start", f"{output}.end", "letters"], output)

        rows = []
        for size in SIZES:
            width = length - size + 1
            number = f"size{size}"
            constants[number] = np.array(size, np.int64)
            for at in range(size):
                name = f"group{size}.{at}"
                scaled = add("Mul", [number, "factor"], f"{name}.scaled")
                total = add("Add", [scaled, part(TOKENS, at, at + width, f"{name}.ids")], f"{name}.sum")
                number = add("Mod", [total, "modulus"], name)
            slot = add("Gather", ["slots", add("Mod", [number, "numbers"], f"number{size}")], f"slot{size}")
            last = part("there", size - 1, length, f"last{size}")
            rows.append(add("Where", [last, slot, "none"], f"row{size}"))
        places = add("Concat", rows, "rows", axis=1)
        parts = add("Cast", [add("Gather", ["table", places], "parts")], "single", to=TensorProto.FLOAT)
        bag = add("ReduceSum", [parts, "letters"], "bag", keepdims=0)
        vector = add("MatMul", [bag, "weight"], "vector")
        norm = add("ReduceL2", [vector, "letters"], "norm", keepdims=1)
        add("Div", [vector, add("Max", [norm, "tiny"], "bounded")], "embedding")
        graph = helper.make_graph(
            nodes,
            "letters",
            [
                helper.make_tensor_value_info(name, TensorProto.INT64, ["N", length])
                for name in (TOKENS, MASK)
            ],
            [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["N", dim])],
            [numpy_helper.from_array(value, name) for name, value in constants.items()],
        )
        opset = helper.make_opsetid("", _OPSET)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=_IR, producer_name="lookalike")
        metadata: Mapping[str, Any] = {
            "lookalike.format": {"version": FORMAT_VERSION},
            "lookalike.embedding": {"dim": dim, "metric": "cosine", "unit_length": True},
            PROPERTY: TEXT_INPUT.to_dict(),
        }
        helper.set_model_props(model, {name: json.dumps(value) for name, value in metadata.items()})
        onnx.checker.check_model(model)
        return bytes(model.SerializeToString())


def _tokenizer(known: Mapping[str, int]) -> Tokenizer:
    try:
        from tokenizers import Regex, Tokenizer
        from tokenizers.models import WordLevel
        from tokenizers.normalizers import NFKC, Lowercase, Replace
        from tokenizers.normalizers import Sequence as Normalizers
        from tokenizers.pre_tokenizers import Split
    except ModuleNotFoundError as error:
        raise InputError(f"text search {needs('tokenizers')}") from error
    tokenizer = Tokenizer(WordLevel(dict(known), unk_token=_UNKNOWN))
    tokenizer.normalizer = Normalizers([NFKC(), Lowercase(), Replace(Regex(r"[^\p{L}\p{M}\p{N}]+"), " ")])
    tokenizer.pre_tokenizer = Split(Regex("."), "isolated")
    return tokenizer
