"""Export of pairs from open_clip and transformers, with random weights, against these libraries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import ftfy
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis.strategies import characters, text
from PIL import Image
from safetensors.torch import save_file
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import Unigram

from export.open_clip_pair import open_clip_pair
from export.pair import Pair
from export.published_configs import card_licence, open_clip_preprocess, transformers_preprocess
from export.sample_texts import SAMPLE_TEXTS
from export.tokenizer_files import clip_tokenizer
from export.transformers_pair import transformers_pair
from retrieval.errors import InputError
from retrieval.images.preprocess import Preprocess
from retrieval.model.embedder import Embedder
from retrieval.model.text_encoder import TextTokenizer
from tests.conftest import lookalike_here

pytestmark = pytest.mark.slow
CARD = "---\nlicense: apache-2.0\ntags: [x]\n---\n# A model\n"


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    """An image of smooth colours that is not square."""
    y, x = np.mgrid[0:48, 0:64] / 48
    waves = [127 + 120 * np.sin(6 * (a * x + b * y)) for a, b in ((1, 0.3), (0.2, 1), (0.7, 0.7))]
    return Image.fromarray(np.stack(waves, -1).astype(np.uint8))


def export(*words: str, out: Path) -> tuple[Embedder, dict[str, Any]]:
    done = lookalike_here("export", *words, "--out", str(out), "--json")
    facts = json.loads(done.stdout)
    assert facts["proof"]["lowest_cosine"] >= 0.99999
    assert facts["text_proof"]["lowest_cosine"] >= 0.99999
    assert facts["text_proof"]["texts"] == f"{len(SAMPLE_TEXTS)} texts"
    return Embedder(out, device="cpu"), facts


def unit(vectors: torch.Tensor) -> np.ndarray:
    return torch.nn.functional.normalize(vectors, dim=-1).detach().numpy()


def tokens_of(pair: Pair, texts: Sequence[str]) -> np.ndarray:
    """Return the ids of the archive's tokenizer, as the text encoder makes them."""
    return TextTokenizer(pair.tokenizer.to_str().encode(), pair.text_input, pair.source)(texts)[0]


def hub_tokenizer(folder: Path, words: int = 300) -> None:
    """Write a tokenizer as SigLIP's: Unigram over pieces of text, lower case, a closing token."""
    letters = sorted({letter for text in SAMPLE_TEXTS for letter in text.lower()})[:words]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -3.0), ("▁red", -2.0)]
    tokenizer = Tokenizer(Unigram([*pieces, *((letter, -5.0) for letter in letters)], unk_id=2))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts | {"unk_token": "<unk>"}))


def test_open_clip(tmp_path: Path, photo: Image.Image) -> None:
    import open_clip

    config = {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "patch_size": 16, "head_width": 16},
        "text_cfg": {"context_length": 20, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
    }
    torch.manual_seed(0)
    model = open_clip.CLIP(**config).eval()
    mean, std = open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD
    facts = {"model_cfg": config, "preprocess_cfg": {"mean": mean, "std": std}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(facts))
    (tmp_path / "README.md").write_text(CARD)
    save_file(model.state_dict(), tmp_path / "open_clip_model.safetensors")

    embedder, _ = export("--from", f"open-clip:local-dir:{tmp_path}", out=tmp_path / "pair.zip")
    assert embedder.provenance["license"] == "apache-2.0"
    assert embedder.provenance["source"] == f"open_clip:local-dir:{tmp_path}"
    assert embedder.text_encoder.text_input.logit_scale == pytest.approx(1 / 0.07, rel=1e-5)
    texts = ["Red   KETTLE", "a cat’s “toy”", "猫"]
    expected = unit(model.encode_text(open_clip.SimpleTokenizer(context_length=20)(texts)))
    np.testing.assert_allclose(embedder.embed_texts(texts), expected, atol=1e-5)
    transform = open_clip.image_transform(32, is_train=False, mean=mean, std=std)
    found, expected = embedder.embed(photo), unit(model.encode_image(transform(photo)[None]))
    assert (found * expected).sum() > 0.999  # resizing rounds differently


def test_open_clip_with_a_timm_tower_and_another_tokenizer(tmp_path: Path) -> None:
    import open_clip

    hub_tokenizer(tmp_path)
    config = {
        "embed_dim": 64,
        "init_logit_bias": -10,
        "custom_text": True,
        "vision_cfg": {
            "timm_model_name": "test_vit",
            "image_size": 160,
            "timm_pool": "avg",
            "timm_proj": "none",
        },
        "text_cfg": {
            "context_length": 12,
            "vocab_size": 400,
            "hf_tokenizer_name": "unused",
            "tokenizer_kwargs": {"clean": "canonicalize", "strip_sep_token": False},
            "width": 32,
            "heads": 2,
            "layers": 1,
            "no_causal_mask": True,
            "pool_type": "last",
            "proj_bias": True,
        },
    }
    torch.manual_seed(0)
    model = open_clip.CustomTextCLIP(**config_arguments(config)).eval()
    preprocess = {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic", "resize_mode": "squash"}
    facts = {"model_cfg": config, "preprocess_cfg": preprocess}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(facts))
    save_file(model.state_dict(), tmp_path / "open_clip_model.safetensors")

    pair = open_clip_pair(f"local-dir:{tmp_path}")
    assert pair.preprocess == Preprocess(160, fit="squeeze", mean=(0.5,) * 3, std=(0.5,) * 3)
    assert (pair.text_input.context_length, pair.text_input.logit_bias) == (12, -10)
    assert pair.facts["license"] is None
    same = tokens_of(pair, ["red_kettle!", "Red  “Kettle”"])
    assert same[0].tolist() == same[1].tolist()
    np.testing.assert_array_equal(tokens_of(pair, SAMPLE_TEXTS), pair.tokenize(SAMPLE_TEXTS))
    planes = torch.rand(2, 3, 160, 160)
    assert torch.equal(pair.image(planes), model.encode_image(planes))


def config_arguments(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != "custom_text"}


def test_clip_of_transformers(tmp_path: Path, photo: Image.Image) -> None:
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPTokenizer

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), "re", "red</w>"]
    special = ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {piece: id for id, piece in enumerate([*pieces, *special])}
    tokenizer = CLIPTokenizer(vocab=vocabulary, merges=[("r", "e"), ("re", "d</w>")])
    tokenizer.save_pretrained(tmp_path)
    layers = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    end = vocabulary["<|endoftext|>"]
    sizes = {
        "vocab_size": len(vocabulary),
        "max_position_embeddings": 16,
        "eos_token_id": end,
        "bos_token_id": end - 1,
    }
    torch.manual_seed(0)
    config = CLIPConfig(
        text_config={**layers, **sizes, "pad_token_id": end},
        vision_config={**layers, "image_size": 32, "patch_size": 16},
        projection_dim=16,
    )
    model = CLIPModel(config).eval()
    model.save_pretrained(tmp_path)
    processor = CLIPImageProcessor(size={"shortest_edge": 36}, crop_size={"height": 32, "width": 32})
    processor.save_pretrained(tmp_path)
    (tmp_path / "README.md").write_text(CARD)

    pair = transformers_pair(str(tmp_path))
    assert (pair.preprocess.size, pair.preprocess.resize) == (32, 36)
    assert pair.facts["license"] == "apache-2.0"
    np.testing.assert_array_equal(tokens_of(pair, SAMPLE_TEXTS), pair.tokenize(SAMPLE_TEXTS))
    texts = ["Red kettle", "a dog, and more words than the context has room for"]
    tokens = tokenizer(texts, padding=True, truncation=True, max_length=16, return_tensors="pt")
    expected = unit(model.get_text_features(**tokens).pooler_output)  # with the mask of the padding
    found = unit(pair.text(torch.from_numpy(pair.tokenize(texts))))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    theirs = processor(photo, return_tensors="np")["pixel_values"][0]
    ours = (pair.preprocess(photo) / 255 - pair.preprocess.mean) / pair.preprocess.std
    np.testing.assert_allclose(ours.transpose(2, 0, 1), theirs, atol=0.05)  # resizing rounds differently


def test_siglip_of_transformers(tmp_path: Path) -> None:
    from transformers import SiglipConfig, SiglipImageProcessor, SiglipModel

    hub_tokenizer(tmp_path)
    layers = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = SiglipConfig(
        text_config={**layers, "vocab_size": 400, "max_position_embeddings": 12},
        vision_config={**layers, "image_size": 32, "patch_size": 16},
    )
    model = SiglipModel(config).eval()
    model.save_pretrained(tmp_path)
    SiglipImageProcessor(
        size={"height": 32, "width": 32}, image_mean=[0.5] * 3, image_std=[0.5] * 3
    ).save_pretrained(tmp_path)

    pair = transformers_pair(str(tmp_path))
    assert pair.preprocess == Preprocess(32, fit="squeeze", mean=(0.5,) * 3, std=(0.5,) * 3)
    np.testing.assert_array_equal(tokens_of(pair, SAMPLE_TEXTS), pair.tokenize(SAMPLE_TEXTS))
    ids = torch.tensor([[4, 1, *[0] * 10]])  # "red", the closing token, padding
    expected = unit(model.get_text_features(input_ids=ids).pooler_output)
    found = unit(pair.text(torch.from_numpy(tokens_of(pair, ["Red"]))))
    np.testing.assert_allclose(found, expected, atol=1e-5)


# ---- tokens, configurations, refusals


LETTERS = characters(exclude_characters="&", exclude_categories=("Cs", "Cc", "Cn"))


@given(text(LETTERS, min_size=1, max_size=12))
@settings(max_examples=50)
def test_tokens_of_any_text(sample: str) -> None:
    simple, ours = clip_tokens()
    assume(ftfy.fix_encoding(sample) == sample)  # the one repair that is left out
    found = ours.encode(sample).ids
    assert found == simple([sample])[0, : len(found)].tolist()


@cache
def clip_tokens() -> tuple[Any, Tokenizer]:
    from open_clip import SimpleTokenizer

    simple = SimpleTokenizer(context_length=100)
    return simple, clip_tokenizer(simple, "lower")


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"size": 224, "crop_size": 224}, Preprocess(224)),
        ({"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}}, Preprocess(224, 256)),
        (
            {"size": {"height": 384, "width": 384}, "resample": 2},
            Preprocess(384, None, "squeeze", "bilinear"),
        ),
    ],
    ids=["old", "crop", "squeeze"],
)
def test_preprocessing_of_transformers(facts: dict[str, Any], expected: Preprocess) -> None:
    statistics = {"image_mean": expected.mean, "image_std": expected.std}
    assert transformers_preprocess(facts | statistics, "model") == expected


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="model: its preprocessing is not supported"):
        open_clip_preprocess({"size": 224, "resize_mode": "longest"}, "model")
    with pytest.raises(InputError, match="images that are not square"):
        transformers_preprocess({"size": {"shortest_edge": 224}, "do_center_crop": False}, "model")
    with pytest.raises(InputError, match=r"did you mean 'ViT-B-32'"):
        open_clip_pair("ViT-B-23:openai")
    with pytest.raises(InputError, match=r"needs weights, as RN50:TAG or RN50:FILE; tags: openai, yfcc15m"):
        open_clip_pair("RN50")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(InputError, match="type bert, supported: clip"):
        transformers_pair(str(tmp_path))
    assert card_licence(tmp_path / "README.md") is None
    lookalike_here("export", "--from", "open-clip:RN50", "--size", "32", "--out", "x", code=2, cwd=tmp_path)
