"""Data sets that come with scikit-learn: what scikit-learn itself gives."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits

from secfed.algorithms.data import bundled


def test_digits_are_those_of_scikit_learn() -> None:
    images, digits = bundled.digits()
    theirs = load_digits()
    np.testing.assert_array_equal(images, theirs.images)
    np.testing.assert_array_equal(digits, theirs.target)


def test_findings_are_those_of_scikit_learn() -> None:
    features, benign = bundled.breast_cancer()
    theirs = load_breast_cancer()
    np.testing.assert_array_equal(features, theirs.data)
    np.testing.assert_array_equal(benign, theirs.target)
