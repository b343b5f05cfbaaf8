"""Combinations that no paper published: the same formulas on other distances, pairs and miners."""

import itertools
from collections.abc import Callable
from functools import partial

from . import hardest, symmetrical, triplets, weighted
from .registry import Variant

_VTHM = {"name": "vthm", "margin": 0.1}
_SYNTHETIC = ("optimal", "optimal-segment", "symmetric", "interpolated")
_SPHERICAL = ("optimal", "symmetric", "interpolated")
_hinge = triplets.hinge(0.2)
_POOLED: dict[str, tuple[Callable[..., float], float]] = {
    "lifted": (symmetrical.lifted, 1.0),
    "hphn-triplet": (hardest.hphn_triplet, 0.2),
    "lifted-hard": (hardest.lifted_hard, 0.2),
}

SOURCES = [
    *(
        Variant(
            f"{name}_{source}",
            {"name": name, "margin": margin, "negatives": source},
            partial(function, margin=margin, source=source),
        )
        for (name, (function, margin)), source in itertools.product(_POOLED.items(), _SYNTHETIC)
    ),
    *(
        Variant(
            f"triplet_{source}_squared-{squared}",
            {"name": "triplet", "margin": 0.2, "negatives": source, "squared": squared},
            partial(triplets.over_pairs, term=triplets.hinge(0.2, squared), source=source),
        )
        for source, squared in itertools.product(_SYNTHETIC, (False, True))
    ),
    *(
        Variant(
            f"{name}_chord",
            {"name": name, "margin": margin, "negatives": "optimal-segment", "normalize": True},
            partial(function, margin=margin, source="chord"),
        )
        for name, (function, margin) in _POOLED.items()
    ),
    *(
        Variant(
            f"triplet_chord_squared-{squared}",
            {
                "name": "triplet",
                "margin": 0.2,
                "negatives": "optimal-segment",
                "normalize": True,
                "squared": squared,
            },
            partial(triplets.over_pairs, term=triplets.hinge(0.2, squared), source="chord"),
        )
        for squared in (False, True)
    ),
    *(
        Variant(
            f"interpolated_{points}",
            {"name": "triplet", "margin": 0.2, "negatives": {"name": "interpolated", "points": points}},
            partial(triplets.over_pairs, term=_hinge, source="interpolated", points=points),
        )
        for points in (1, 5)
    ),
    Variant(
        "interpolated_beside",
        {"name": "triplet", "margin": 0.2, "negatives": "interpolated", "points": 3},
        partial(triplets.over_pairs, term=_hinge, source="interpolated", points=3),
    ),
    *(
        Variant(
            f"raw_{source}",
            {"name": "raw", "negatives": source, "mining": _VTHM},
            partial(weighted.multi_similarity_pairs, source=source, mining=0.1),
        )
        for source in _SPHERICAL
    ),
    *(
        Variant(
            f"raw_{source}_unmined",
            {"name": "raw", "negatives": source, "mining": None},
            partial(weighted.multi_similarity_pairs, source=source, mining=None),
        )
        for source in _SPHERICAL
    ),
    *(
        Variant(
            f"sct_{source}",
            {"name": "sct", "negatives": source},
            partial(
                triplets.mined,
                term=triplets.selectively_contrastive(triplets.nca()),
                source=source,
                negative="hard",
            ),
        )
        for source in _SPHERICAL
    ),
    *(
        Variant(
            f"nca_{negative}_{source}",
            {"name": "triplet-nca", "negatives": source, "mining": {"negative": negative}},
            partial(triplets.mined, term=triplets.nca(), source=source, negative=negative),
        )
        for source, negative in itertools.product(_SPHERICAL, ("hard", "semi-hard", "all"))
    ),
    *(
        Variant(
            f"cosine_{source}",
            {"name": "triplet-cosine", "negatives": source},
            partial(triplets.mined, term=triplets.cosine_hinge(0.1), source=source, negative="all"),
        )
        for source in _SPHERICAL
    ),
    *(
        Variant(
            f"n-pair_{source}",
            {"name": "n-pair", "negatives": source, "normalize": True},
            partial(symmetrical.n_pair_synthetic, source=source),
        )
        for source in ("optimal", "interpolated")
    ),
]

PAIRS = [
    *(
        Variant(
            f"triplet_{pairs}_{reduction}",
            {"name": "triplet", "pairs": pairs, "negative_reduction": reduction},
            partial(triplets.over_pairs, term=_hinge, pairs=pairs, negative_reduction=reduction),
        )
        for pairs, reduction in itertools.product(
            ("alternate", "unordered", "ordered"), ("sum", "mean", "min")
        )
    ),
    *(
        Variant(
            f"lifted_{pairs}",
            {"name": "lifted", "pairs": pairs},
            partial(symmetrical.lifted, pairs=pairs),
        )
        for pairs in ("alternate", "ordered")
    ),
    *(
        Variant(
            f"lifted_pooled_{source}",
            {"name": "lifted-hard", "negatives": source, "pooling": "logsumexp"},
            partial(hardest.lifted_hard, source=source, pooling="logsumexp"),
        )
        for source in ("batch", "symmetric")
    ),
]

_TERMS = {
    "triplet": triplets.hinge(0.2),
    "triplet-cosine": triplets.cosine_hinge(0.1),
    "triplet-nca": triplets.nca(),
    "sct": triplets.selectively_contrastive(triplets.nca()),
}
_PAIR_MINED: list[tuple[str, str, Callable[..., float], float]] = [
    ("contrastive_mined", "contrastive", weighted.contrastive, 0.2),
    ("equal_mined", "equal-weight", weighted.equal_weight, -0.1),
    ("binomial_mined", "binomial-deviance", weighted.binomial_deviance, 0.3),
    ("gen_lifted_mined", "lifted-generalized", weighted.generalized_lifted, 0.1),
]
MINERS = [
    *(
        Variant(
            f"{name}_{positive}_{negative}",
            {"name": name, "mining": {"positive": positive, "negative": negative}},
            partial(triplets.mined, term=term, positive=positive, negative=negative),
        )
        for (name, term), positive, negative in itertools.product(
            _TERMS.items(), ("easy", "hard", "all"), ("hard", "semi-hard", "all")
        )
    ),
    *(
        Variant(
            f"triplet_{reduction}_{negative}",
            {"name": "triplet", "reduction": reduction, "mining": {"positive": "all", "negative": negative}},
            partial(triplets.mined, term=_hinge, reduction=reduction, positive="all", negative=negative),
        )
        for reduction, negative in itertools.product(("mean-active", "sum"), ("hard", "semi-hard", "all"))
    ),
    *(
        Variant(
            f"triplet_{positive}_farthest",
            {
                "name": "triplet",
                "mining": {"positive": positive, "negative": "semi-hard", "fallback": "farthest"},
            },
            partial(
                triplets.mined, term=_hinge, positive=positive, negative="semi-hard", fallback="farthest"
            ),
        )
        for positive in ("easy", "hard")
    ),
    *(
        Variant(
            f"{name}_duplicates_{positive}",
            {"name": name, "mining": {"positive": positive, "negative": "hard", "duplicate_above": 0.6}},
            partial(triplets.mined, term=term, positive=positive, duplicate_above=0.6),
        )
        for (name, term), positive in itertools.product(_TERMS.items(), ("easy", "all"))
    ),
    *(
        Variant(
            label,
            {"name": name, "mining": {"name": "vthm", "margin": margin}},
            partial(function, mining=margin),
        )
        for label, name, function, margin in _PAIR_MINED
    ),
    *(
        Variant(
            f"{name}_triplets_{positive}_{negative}",
            {"name": name, "mining": {"positive": positive, "negative": negative}},
            partial(function, mining={"positive": positive, "negative": negative}),
        )
        for (_, name, function, _), positive, negative in itertools.product(
            [*_PAIR_MINED, ("", "raw", weighted.raw, 0.0)],
            ("easy", "hard", "all"),
            ("hard", "semi-hard", "all"),
        )
    ),
    *(
        Variant(
            f"raw_triplets_{'_'.join(mining)}",
            {"name": "raw", "mining": mining},
            partial(weighted.raw, mining=mining),
        )
        for mining in (
            {"negative": "hard"},
            {"negative": "hard", "duplicate_above": 0.6},
            {"negative": "semi-hard", "fallback": "farthest"},
        )
    ),
    *(
        Variant(
            f"raw_triplets_{source}_{negative}",
            {"name": "raw", "negatives": source, "mining": {"negative": negative}},
            partial(weighted.multi_similarity_pairs, source=source, mining={"negative": negative}),
        )
        for source, negative in itertools.product(("optimal", "symmetric"), ("hard", "semi-hard"))
    ),
    Variant(
        "equal_unmined",
        {"name": "equal-weight", "mining": None},
        partial(weighted.equal_weight, mining=None),
    ),
]

COMBINATIONS = [*SOURCES, *PAIRS, *MINERS]
