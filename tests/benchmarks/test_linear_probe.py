import linear_probe
import pytest
import torch
from torch import nn

from secfed.errors import ConfigError, DataError
from tests.algorithms import dual_encoder_case
from tests.algorithms.toy_pairs import ToyDual, toy_pairs

CPU = torch.device("cpu")


def blobs(count, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    centres = 3 * torch.eye(classes, 8)
    return centres[labels] + torch.randn(count, 8, generator=generator), labels


def test_the_layer_is_the_minimum_of_penalised_logistic_regression():
    features, labels = (part.double() for part in blobs(90))
    weight, bias = linear_probe.fit_linear(features, labels.long(), 3)
    # The objective is convex: where its gradient is zero is its minimum.
    residual = torch.softmax(features @ weight.T + bias, dim=1) - torch.eye(3)[labels.long()]
    assert (residual.T @ features + weight).abs().max() < 1e-4
    assert residual.sum(dim=0).abs().max() < 1e-4


def test_a_share_of_each_class_is_labelled_and_never_none():
    labels = torch.tensor([0] * 300 + [1] * 40)
    rows = linear_probe.labelled_rows(labels, 2, 0.01, torch.Generator().manual_seed(0))
    assert labels[rows].tolist() == [0, 0, 0, 1]
    rows = linear_probe.labelled_rows(labels, 2, 0.1, torch.Generator().manual_seed(0))
    assert labels[rows].bincount().tolist() == [30, 4]
    assert len(set(rows.tolist())) == 34


@pytest.mark.parametrize("share", [0.0, 1.5, -0.1])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ConfigError):
        linear_probe.labelled_rows(torch.tensor([0, 1]), 2, share, torch.Generator())


def test_a_class_without_images_is_refused():
    with pytest.raises(DataError, match="class 2"):
        linear_probe.labelled_rows(torch.tensor([0, 1]), 3, 0.5, torch.Generator())


def test_the_probe_is_deterministic_and_gains_from_labels():
    train, labels = blobs(600)
    test, true = blobs(300, seed=1)

    def found(share, seed=0):
        return linear_probe.probe_features(train, labels, test, true, 3, share, seed)

    assert found(0.01) == found(0.01)
    assert found(0.01) != found(0.01, seed=1)
    assert 1 / 3 < found(0.01)["accuracy"] < found(0.1)["accuracy"] <= 1


def test_features_are_scaled_with_training_images_only():
    train, labels = blobs(60)
    test, true = blobs(10, seed=1)
    scale = torch.logspace(-3, 3, 8)
    plain = linear_probe.probe_features(train, labels, test, true, 3, 0.5, 0)
    assert linear_probe.probe_features(train * scale + 7, labels, test * scale + 7, true, 3, 0.5, 0) == plain
    # A test image's class must not depend on which other images are tested.
    one_by_one = [
        linear_probe.probe_features(train, labels, test[i : i + 1] * 9, true[i : i + 1], 3, 0.5, 0)[
            "accuracy"
        ]
        for i in range(10)
    ]
    together = linear_probe.probe_features(train, labels, test * 9, true, 3, 0.5, 0)["accuracy"]
    assert together == pytest.approx(sum(one_by_one) / 10)


def test_balanced_accuracy_counts_classes_and_accuracy_records():
    train = torch.tensor([[-1.0], [1.0]]).repeat(10, 1)
    labels = torch.tensor([0, 1]).repeat(10)
    test, true = torch.tensor([[-1.0]] * 6 + [[1.0], [-1.0]]), torch.tensor([0] * 6 + [1, 1])
    found = linear_probe.probe_features(train, labels, test, true, 2, 1.0, 0)
    assert found == pytest.approx({"accuracy": 7 / 8, "balanced_accuracy": 0.75})


def test_a_probe_leaves_the_model_alone_and_reads_its_image_encoder():
    model, pairs = ToyDual(), toy_pairs(40)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    features = linear_probe.pooled_features(model, pairs.images, CPU)
    wanted = model.encode(pairs.images, pairs.tokens).image[:, 1:].mean(dim=1)
    assert torch.allclose(features, wanted, atol=1e-6)
    test = toy_pairs(40, 1)
    of_test = linear_probe.pooled_features(model, test.images, CPU)
    found = linear_probe.probe_findings(features, pairs.findings, of_test, test.findings, 0.5, 0)
    assert found["accuracy"] > 0.8
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_the_path_of_pre_training_ends_where_its_projection_begins(pool):
    model, (images, tokens) = dual_encoder_case.model(pool=pool), dual_encoder_case.pairs()
    features = linear_probe.path_features(model, images, CPU)
    whole = model.align(model.encode(images, tokens)).image
    assert torch.allclose(nn.functional.normalize(model.image_align.head(features), dim=1), whole, atol=1e-5)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(DataError, match="pneumoniamnist"):
        linear_probe.pneumonia(tmp_path, lambda images: images, (1, 32, 32))
    for content in (b"not a zip", b"PK\x03\x04 and no more"):
        (tmp_path / "pneumoniamnist.npz").write_bytes(content)
        with pytest.raises(DataError, match="pneumoniamnist"):
            linear_probe.pneumonia(tmp_path, lambda images: images, (1, 32, 32))


@pytest.mark.shared_data
def test_pneumonia_images_look_like_the_studys(shared_data):
    data = linear_probe.pneumonia(shared_data, lambda images: images, (1, 32, 32))
    assert tuple(data.train.shape) == (4708, 1, 32, 32)
    assert tuple(data.test.shape) == (624, 1, 32, 32)
    assert data.train.dtype == torch.float32
    assert 0 <= float(data.train.min()) < float(data.train.max()) <= 1
    assert data.test_y.bincount().tolist() == [234, 390]
    small = linear_probe.Labelled(data.train[:400], data.train_y[:400], data.test, data.test_y, 2)
    features = [linear_probe.pooled_features(ToyDual(), images, CPU) for images in (small.train, small.test)]
    found = linear_probe.probe_features(features[0], small.train_y, features[1], small.test_y, 2, 0.5, 0)
    assert found["accuracy"] > 0.65
