"""Licences of pretrained weights: which of them restrict the use of a model.

Licences are identifiers of the Hugging Face hub, as in timm: apache-2.0, cc-by-nc-4.0, dinov3-license.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

PERMISSIVE = frozenset(
    {"apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "unlicense"}
)
"""Licences that allow commercial use without further terms, but for attribution."""
_RESEARCH = {
    "apple-amlr"
}  # Apple Machine Learning Research Model License: "exclusively for Research Purposes"


def model_license(provenance: Mapping[str, Any]) -> str | None:
    """Return the licence of the weights that a model was trained from; `None` if none is stated."""
    found = provenance.get("license")
    return str(found) if found else None


def license_notice(identifier: str | None) -> str:
    """Return a sentence on a licence that restricts the use of weights; empty for others, and for `None`."""
    if identifier is None or identifier in PERMISSIVE:
        return ""
    if identifier in _RESEARCH:
        return f"{identifier}: for research only; read the licence before other use"
    if re.search(r"(^|-)(nc|noncommercial|non-commercial)(-|$)", identifier):
        return f"{identifier}: not for commercial use"
    if identifier == "unknown":
        return "the licence of the weights is unknown; ask their authors before commercial use"
    return f"{identifier}: has terms of its own; read it before commercial use"
