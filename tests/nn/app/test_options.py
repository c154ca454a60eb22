"""nn/app/options.py: defaults, the command line, and one line for everything that makes no sense."""

import copy
import dataclasses
import json
import math
import pickle
from pathlib import Path

import pytest

from nn.app.command_line import parse
from nn.app.options import Options
from nn.optimisers import Adam, Sgd
from pyrt.errors import UserError

COUNTS = ["batch", "samples", "classes", "print-every"]
COUNTS_OR_ZERO = ["epochs", "seed"]
POSITIVE = ["lr", "eps", "pixel-scale", "tolerance"]
FRACTIONS = ["momentum", "beta1", "beta2", "val-fraction"]
WORDS = ["activation", "head", "optimiser", "dtype", "device", "gemm", "exchange", "placement", "val-split"]
FILES = ["init", "save", "export", "predictions", "json"]


def refusal(*arguments):
    """The message with which a command line is refused; it must be one line."""
    with pytest.raises(UserError) as caught:
        parse(arguments)
    assert caught.value.code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def options_and(values, *groups):
    return [(option, value) for group in groups for option in group for value in values]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *options_and(["", "x", "nan", "inf", "-inf", "-1"], COUNTS, COUNTS_OR_ZERO),
        *options_and(["", "x", "nan", "inf", "-inf", "-1"], POSITIVE, FRACTIONS, ["reg"]),
        *options_and(["1.5", "1e3", "0x10"], COUNTS, COUNTS_OR_ZERO),
        *options_and(["0"], COUNTS, POSITIVE),
        *options_and(["1", "1.5", "-0.1"], FRACTIONS),
        *options_and(["", "x", "Sigmoid", "auto "], WORDS),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_with_its_option(option, value):
    check = ["--check"] if option == "tolerance" else []
    message = refusal(f"--{option}={value}", *check)
    assert f"--{option}" in message
    assert value in message
    assert f"--{option}" in refusal(f"--{option}", value, *check)


@pytest.mark.parametrize(
    "value",
    [
        "",
        ",",
        "512,",
        ",512",
        "512,,256",
        "0",
        "512,0",
        "512,-1",
        "-1",
        "-1,512",
        "1.5",
        "x",
        "512;256",
        "512,none",
    ],
)
def test_hidden_layers_that_make_no_sense(value):
    assert "--hidden" in refusal("--hidden", value)
    assert "--hidden" in refusal(f"--hidden={value}")


def test_no_hidden_layers():
    options = parse(["--hidden", "none"])
    assert options.hidden == () and options.as_json()["hidden"] == []
    assert str(options.make_network((28, 28), 10)) == "784-10, softmax cross-entropy"
    assert "--activation" in refusal("--hidden", "none", "--activation", "tanh")


@pytest.mark.parametrize(
    "option", [*COUNTS, *COUNTS_OR_ZERO, *POSITIVE, *FRACTIONS, *WORDS, *FILES, "hidden"]
)
def test_a_missing_value(option):
    assert f"--{option}" in refusal(f"--{option}")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--nonsense"], "--nonsense"),
        (["--nonsense=3"], "--nonsense"),
        (["word"], "word"),
        (["--epoch", "3"], "--epoch"),  # no abbreviations: a later option could make them ambiguous
        (["--check=yes"], "--check"),
        (["--two\nlines"], "lines"),
    ],
)
def test_an_unknown_option(arguments, word):
    assert word in refusal(*arguments)


@pytest.mark.parametrize("value", ["", "0", "-1", "1.5", "ep", "0ep", "2 ep", "2epochs", "x", "1" * 16])
def test_checkpoints_that_make_no_sense(value):
    message = refusal("--checkpoint", "c", f"--checkpoint-every={value}")
    assert f"--checkpoint-every {value}: must be steps, as 500, or epochs, as 2ep" in message


@pytest.mark.parametrize("value", ["", "0", "-1", "1.5", "x"])
def test_how_many_are_kept(value):
    assert "--keep" in refusal("--checkpoint", "c", f"--keep={value}")


@pytest.mark.parametrize(("value", "steps"), [("1", 1), ("500", 500), ("1ep", 36), ("20ep", 720)])
def test_steps_between_checkpoints(value, steps):
    options = parse(["--checkpoint", "c", "--checkpoint-every", value])
    assert options.steps_between_checkpoints(36) == steps


def test_no_exchange_at_all_is_for_python_alone(capsys):
    assert Options(exchange="local").exchange == "local"
    assert "local" in refusal("--exchange", "local")
    with pytest.raises(SystemExit):
        parse(["--help"])
    assert "local" not in capsys.readouterr().out
    with pytest.raises(UserError, match=r"--exchange locally: must be one of auto, root, .*, server$"):
        Options(exchange="locally")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--evaluate"], ["--evaluate", "--init"]),
        (["--evaluate", "--init", "a.npz", "--save", "b.npz"], ["--evaluate", "--save"]),
        (["--evaluate", "--init", "a.npz", "--check"], ["--evaluate", "--check"]),
        (["--predictions", "labels"], ["--predictions", "--evaluate"]),
        (["--init", "a.npz", "--predictions", "labels"], ["--predictions", "--evaluate"]),
        (["--latency"], ["--latency", "--evaluate"]),
        (["--init", "a.npz", "--latency", "8"], ["--latency", "--evaluate"]),
        (["--evaluate", "--init", "a.npz", "--latency", "--profile"], ["--latency", "--profile"]),
        (["--evaluate", "--init", "a.npz", "--latency", "--check-each", "1"], ["--latency", "--check-each"]),
        (["--tolerance", "1e-3"], ["--tolerance", "--check"]),
        (["--sanitize"], ["--sanitize", "--device emulated"]),
        (["--order-seed", "1", "--device", "cpu"], ["--order-seed", "--device emulated"]),
        (["--augment", "rotate"], ["--augment rotate", "must be flip, or shift"]),
        (["--augment", "flip,shift0"], ["--augment flip,shift0", "must be flip, or shift"]),
        (["--resume"], ["--resume", "--checkpoint DIR"]),
        (["--checkpoint-every", "5"], ["--checkpoint-every", "--checkpoint DIR"]),
        (["--keep", "1"], ["--keep", "--checkpoint DIR"]),
        (["--checkpoint-errors", "warn"], ["--checkpoint-errors", "--checkpoint DIR"]),
        (["--evaluate", "--init", "a.npz", "--checkpoint", "c"], ["--evaluate", "--checkpoint"]),
        (["--save", "a.ONNX"], ["--save a.ONNX", "--export writes ONNX"]),
        (["--export", "a.npz"], ["--export a.npz", "ONNX", "--save"]),
        (["--export", "a.pyrtz"], ["--export a.pyrtz", "ONNX", "--save"]),
        (["--export", "a.safetensors"], ["--export a.safetensors", "ONNX", "--save"]),
        (["--export", "a", "--save", "./a"], ["--save, --export", "a file of its own for each"]),
    ],
)
def test_options_that_do_not_go_together(arguments, words):
    message = refusal(*arguments)
    assert all(word in message for word in words)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("momentum", "0"),
        ("reg", "0"),
        ("val-fraction", "0"),
        ("epochs", "0"),
        ("seed", "0"),
        ("batch", "1"),
        ("lr", "1e-30"),
        ("momentum", "0.999"),
        ("beta1", "0"),
        ("beta2", "0.999999"),
        ("eps", "1e-30"),
        ("classes", "65536"),
    ],
)
def test_values_at_the_limits_are_taken(option, value):
    assert getattr(parse([f"--{option}", value]), option.replace("-", "_")) == float(value)


def test_the_defaults():
    options = parse([])
    assert options == Options()
    assert (options.hidden, options.activation, options.head) == ((512,), "sigmoid", "softmax")
    assert (options.reg, options.momentum, options.batch, options.val_fraction) == (1e-4, 0.9, 3000, 0.1)
    assert (options.pixel_scale, options.dtype, options.data) == (255, "float32", "embedded")
    assert (options.device, options.gemm, options.exchange) == ("auto", "auto", "auto")
    assert options.placement == "auto" and options.graph
    assert options.shuffle and options.share_gpus and not options.check
    assert [parse(["--dtype", dtype]).check_tolerance for dtype in ("float32", "float64")] == [1e-4, 1e-11]


def test_a_command_line_fills_every_option():
    line = (
        "--hidden 512,256 --activation tanh --head sigmoid --reg 0.5 --batch 7 --epochs 3 --lr 0.25 "
        "--momentum 0.9 --optimiser adam --beta1 0.8 --beta2 0.99 --eps 1e-7 --dtype float64 "
        "--device emulated --sanitize --order-seed 5 --no-share-gpus "
        "--data folder --samples 9 --no-shuffle "
        "--classes 12 --val-fraction 0.2 --val-split random --augment shift2,flip "
        "--seed 4 --pixel-scale 1 --init a.npz --save b.npz --check --tolerance 1e-3 "
        "--gemm naive --exchange blocking --ranks-per-node 3 --placement stream --no-graph --print-every 2 "
        "--profile --json c.json --export d.onnx"
    )
    options = parse(line.split())
    assert options == Options(
        hidden=(512, 256),
        activation="tanh",
        head="sigmoid",
        reg=0.5,
        batch=7,
        epochs=3,
        lr=0.25,
        momentum=0.9,
        optimiser="adam",
        beta1=0.8,
        beta2=0.99,
        eps=1e-7,
        dtype="float64",
        device="emulated",
        sanitize=True,
        order_seed=5,
        share_gpus=False,
        data="folder",
        samples=9,
        classes=12,
        val_fraction=0.2,
        val_split="random",
        augment="flip,shift2",
        shuffle=False,
        seed=4,
        pixel_scale=1.0,
        init=Path("a.npz"),
        save=Path("b.npz"),
        check=True,
        tolerance=1e-3,
        gemm="naive",
        exchange="blocking",
        ranks_per_node=3,
        placement="stream",
        graph=False,
        print_every=2,
        profile=True,
        json=Path("c.json"),
        export=Path("d.onnx"),
    )
    assert options.check_tolerance == 1e-3
    evaluation = parse(["--evaluate", "--init", "a.npz", "--predictions", "labels"])
    assert (evaluation.evaluate, evaluation.predictions) == (True, Path("labels"))


def test_latency_takes_a_number_or_none():
    evaluation = ["--evaluate", "--init", "a.npz"]
    assert parse(evaluation).latency is None
    assert parse([*evaluation, "--latency"]).latency is parse(["--latency", *evaluation]).latency is True
    assert parse([*evaluation, "--latency", "1"]).latency == parse([*evaluation, "--latency=1"]).latency == 1
    for value in ("", "x", "0", "-1", "1.5", "nan"):
        message = refusal(*evaluation, f"--latency={value}")
        assert "--latency" in message and value in message


def test_the_optimiser_has_the_rates_of_the_options():
    rates = {"lr": 0.25, "momentum": 0.5, "beta1": 0.8, "beta2": 0.99, "eps": 1e-7, "reg": 0.125}
    assert Options(**rates).make_optimiser() == Sgd(0.25, 0.5, 0.125)
    assert Options(optimiser="adam", **rates).make_optimiser() == Adam(0.25, 0.8, 0.99, 1e-7, 0.125)


def test_all_options_go_into_json():
    options = parse(["--save", "b.npz", "--hidden", "512,256"])
    written = json.loads(json.dumps(options.as_json()))
    assert written.keys() == {field.name for field in dataclasses.fields(Options)}
    assert (written["save"], written["hidden"], written["samples"]) == ("b.npz", [512, 256], None)


def test_what_all_ranks_must_have_been_given():
    """All but the names of files, which rank 0 alone reads and writes; that there is one counts."""
    first = Options(save=Path("a.npz"), data="a.npz")
    assert Options(save=Path("b.npz"), data="b.npz").common == first.common
    for changes in (
        {"save": None},
        {"init": Path("a.npz")},
        {"lr": 0.5},
        {"hidden": (9,)},
        {"plan": "model"},
    ):
        other = dataclasses.replace(first, **changes).common
        assert [name for name in other if other[name] != first.common[name]] == [f"--{next(iter(changes))}"]


def test_in_process_the_same_values_are_refused():
    for values in ({"lr": math.nan}, {"batch": 0}, {"hidden": (0,)}, {"activation": "x"}, {"evaluate": True}):
        with pytest.raises(UserError, match=f"--{next(iter(values))}"):
            Options(**values)


def test_in_process_the_name_of_a_file_may_be_a_text():
    options = Options(init="a.npz", save="b.safetensors", checkpoint="c")
    assert options == Options(init=Path("a.npz"), save=Path("b.safetensors"), checkpoint=Path("c"))


def test_help_names_every_option(capsys):
    with pytest.raises(SystemExit) as ended:
        parse(["--help"])
    text = capsys.readouterr().out
    assert not ended.value.code
    for field in dataclasses.fields(Options):
        assert f"--{field.name.replace('_', '-')}" in text


def test_more_classes_than_a_label_may_have():
    assert refusal("--classes", "65537") == "--classes 65537: must be at most 65536"


def test_a_way_to_hold_out_no_rows_is_refused():
    assert "nothing is held out" in refusal("--val-fraction", "0", "--val-split", "random")


def test_what_is_given_is_known_whatever_its_value():
    """Also where it is the default; `dataclasses.replace` gives all."""
    assert parse([]).given == Options().given == frozenset()
    options = parse(["--hidden", "512", "--no-shuffle"])
    assert options.given == Options(hidden=(512,), shuffle=False).given == {"hidden", "shuffle"}
    assert options == Options(shuffle=False)
    assert pickle.loads(pickle.dumps(options)).given == copy.copy(options).given == options.given
    assert dataclasses.replace(options, seed=1).given == {field.name for field in dataclasses.fields(Options)}
