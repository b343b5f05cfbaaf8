"""Data sets: labelled images on disk, and the splits of published protocols. Does not import torch."""

from __future__ import annotations

from train.data.dataset import DataSet, LabelledImage, class_categories, class_numbers
from train.data.fetcher import fetch
from train.data.known import KNOWN
from train.data.spec import load

__all__ = ["KNOWN", "DataSet", "LabelledImage", "class_categories", "class_numbers", "fetch", "load"]
