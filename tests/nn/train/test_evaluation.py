"""nn/train/evaluation.py: scores of logits against plain loops."""

import math

import numpy as np
import pytest

from nn.train.evaluation import Scores, score

LOGITS = np.random.default_rng(0).normal(0, 3, (200, 12)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 11, 200)  # so that class 11 is absent


def ranking(logits):
    """The classes from the largest logit to the smallest."""
    return sorted(range(len(logits)), key=lambda label: -logits[label])


def softmax_loss(logits, label):
    return -math.log(math.exp(logits[label]) / sum(map(math.exp, logits)))


def sigmoid_loss(logits, label):
    total = 0.0
    for index, logit in enumerate(logits):
        y = 1 / (1 + math.exp(-logit))
        total -= math.log(y) if index == label else math.log(1 - y)
    return total


@pytest.mark.parametrize(("head", "loss"), [("softmax", softmax_loss), ("sigmoid", sigmoid_loss)])
def test_scores_are_those_of_plain_loops(head, loss):
    scores = score(LOGITS, LABELS, head)
    rows = [[float(logit) for logit in row] for row in LOGITS]
    first = [ranking(row)[0] == label for row, label in zip(rows, LABELS, strict=True)]
    among_five = [label in ranking(row)[:5] for row, label in zip(rows, LABELS, strict=True)]
    assert scores.samples == 200
    assert scores.precision == pytest.approx(sum(first) / 200)
    assert scores.top5 == pytest.approx(sum(among_five) / 200)
    losses = [loss(row, label) for row, label in zip(rows, LABELS, strict=True)]
    assert scores.loss == pytest.approx(sum(losses) / 200)
    for label in range(11):
        mine = [right for right, truth in zip(first, LABELS, strict=True) if truth == label]
        assert scores.recall[label] == pytest.approx(sum(mine) / len(mine))
    assert scores.recall[11] is None


def test_with_five_classes_or_fewer_every_label_is_among_the_top_five():
    assert score(LOGITS[:, :5], LABELS % 5, "softmax").top5 == 1


def test_the_best_and_the_worst():
    labels = np.arange(7)
    best, worst = score(100 * np.eye(7), labels, "softmax"), score(-100 * np.eye(7), labels, "softmax")
    assert (best.precision, best.top5, best.recall) == (1, 1, [1] * 7)
    assert (worst.precision, worst.top5, worst.recall) == (0, 0, [0] * 7)


@pytest.mark.parametrize("classes", [3, 12])
@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_equal_logits_are_ranked_once_for_all_figures(head, classes):
    """By class number, as argmax does: the label is among the best five wherever it is the best."""
    labels = np.arange(classes)
    flat = score(np.zeros((classes, classes)), labels, head)
    assert (flat.precision, flat.top5) == (1 / classes, min(1, 5 / classes))
    assert flat.recall == [1, *[0] * (classes - 1)]
    logits = np.random.default_rng(2).integers(0, 3, (2000, classes)).astype(np.float32)
    labels = np.random.default_rng(3).integers(0, classes, 2000)
    scores = score(logits, labels, head)
    assert scores.precision == np.mean(logits.argmax(axis=1) == labels)
    ranked = np.argsort(-logits, axis=1, kind="stable")[:, :5]
    assert scores.top5 == np.mean((ranked == labels[:, None]).any(axis=1))
    assert scores.precision <= scores.top5


def test_logits_that_are_no_numbers_count_against_the_label():
    scores = score(np.full((4, 7), np.nan), np.arange(4), "softmax")
    assert (scores.precision, scores.top5) == (0, 0)


def test_the_table_has_the_classes_that_have_samples():
    table = Scores(3, 0.25, 2 / 3, 1.0, [1.0, None, 0.5]).table()
    words = [line.split() for line in table.splitlines()]
    assert ["0", "1.0000"] in words and ["2", "0.5000"] in words
    assert not any(line[:1] == ["1"] for line in words)
    assert words[0] == ["class", "recall"]
    assert "3 test samples: loss 0.250000, top-5 precision 1.0000" in table
