"""The transformer in pipelines of scikit-learn, and scikit-learn's own checks of estimators."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks
from sklearn.utils.validation import validate_data

from retrieval import Embedder, EmbeddingTransformer, InputError
from tests.serve.model import write_model


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model.onnx")


def test_pipeline_learns_classes_and_predicts_as_by_hand(file: Path, shop: Path) -> None:
    paths = sorted(shop.rglob("*.png"))
    labels = [path.parent.name for path in paths]
    pipeline = make_pipeline(EmbeddingTransformer(file), LogisticRegression(C=10)).fit(paths, labels)
    by_hand = LogisticRegression(C=10).fit(Embedder(file).embed(paths), labels)
    assert pipeline.predict(paths).tolist() == by_hand.predict(Embedder(file).embed(paths)).tolist()
    assert cross_val_score(pipeline, np.array(paths), labels, cv=3).min() > 0.9  # of three: by chance 0.33


def test_set_output_gives_a_table_with_a_name_for_each_dimension(file: Path, shop: Path) -> None:
    paths = sorted(map(str, shop.rglob("*.png")))
    made = EmbeddingTransformer(file).set_output(transform="pandas").fit_transform(pd.Series(paths))
    assert made.columns.tolist() == [f"embeddingtransformer{n}" for n in range(48)]
    np.testing.assert_array_equal(made.to_numpy(), Embedder(file).embed(paths))


def test_column_of_a_table_is_embedded_and_two_are_refused(file: Path, shop: Path) -> None:
    table = pd.DataFrame({"path": sorted(map(str, shop.rglob("*.png"))), "price": range(24)})
    parts = [("looks", EmbeddingTransformer(file), ["path"]), ("price", "passthrough", ["price"])]
    made = ColumnTransformer(parts).fit_transform(table)
    np.testing.assert_allclose(made[:, :48], Embedder(file).embed(table.path.tolist()), atol=1e-6)
    assert made[:, 48].tolist() == list(range(24))
    with pytest.raises(InputError, match="2 columns"):
        EmbeddingTransformer(file).transform(table.assign(price="a"))


def test_pickle_has_the_path_and_no_model(model_file: Path, shop: Path, tmp_path: Path) -> None:
    paths = sorted(shop.rglob("*.png"))
    fitted = EmbeddingTransformer(model_file, batch_size=3).fit(paths)
    expected = fitted.transform(paths)
    assert len(pickle.dumps(fitted)) < 1000 < model_file.stat().st_size
    joblib.dump(fitted, tmp_path / "fitted")
    restored = joblib.load(tmp_path / "fitted")
    np.testing.assert_array_equal(restored.transform(paths), expected)
    assert clone(restored).get_params() == fitted.get_params()
    assert not hasattr(clone(restored), "fingerprint_")


def test_another_model_in_place_of_the_fitted_one_is_refused(file: Path, shop: Path) -> None:
    paths = sorted(shop.rglob("*.png"))
    restored = pickle.loads(pickle.dumps(EmbeddingTransformer(file).fit(paths)))
    shutil.move(write_model(file.with_name("other.onnx"), note="another"), file)
    with pytest.raises(InputError, match="another model than at `fit`"):
        restored.transform(paths)
    assert restored.fit(paths).transform(paths).shape == (24, 48)


def test_changed_setting_takes_another_model(file: Path, shop: Path) -> None:
    transformer = EmbeddingTransformer("absent.onnx")
    with pytest.raises(InputError, match=r"absent.onnx: there is no such model file"):
        transformer.fit([])
    assert transformer.set_params(model=file).fit_transform(sorted(shop.rglob("*.png"))).shape == (24, 48)


class OfRows(EmbeddingTransformer):
    """The transformer for rows of numbers, which the checks of scikit-learn are made of, drawn as images."""

    def fit(self, X: Any, y: Any = None) -> OfRows:
        validate_data(self, X, dtype=float)
        return super().fit(X, y)

    def transform(self, X: Any) -> np.ndarray:
        rows = validate_data(self, X, dtype=float, reset=not hasattr(self, "n_features_in_"))
        levels = np.clip(128 + 16 * rows[:, :4], 0, 255).astype(np.uint8)
        padded = np.pad(levels, [(0, 0), (0, 4 - levels.shape[1])], constant_values=128)
        return super().transform(np.broadcast_to(padded[:, :, None, None], (len(rows), 4, 8, 3)))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.string, tags.no_validation = True, False, False
        return tags


# Checks that make no data.
WITHOUT_DATA = (
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
)


@pytest.mark.parametrize("name", WITHOUT_DATA)
def test_checks_of_scikit_learn_without_data_pass(name: str, file: Path) -> None:
    getattr(estimator_checks, name)("EmbeddingTransformer", EmbeddingTransformer(file))


def test_all_checks_of_scikit_learn_pass_for_rows_as_images(file: Path) -> None:
    """Its checks with data make rows of numbers; of images it has none, and skips them by the tags."""
    done = estimator_checks.check_estimator(OfRows(file), on_skip=None, on_fail=None)
    assert not {one["check_name"]: one["exception"] for one in done if one["status"] == "failed"}
    skipped = {one["check_name"] for one in done if one["status"] == "skipped"}
    assert skipped <= {"check_array_api_input"}  # SciPy reads a variable for it when it is imported
    assert len(done) > 35
