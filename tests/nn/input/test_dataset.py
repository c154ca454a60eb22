"""nn/input/dataset.py and load(): what makes a data set, whichever reader found it; the choice of reader."""

import numpy as np
import pytest

from nn.input import Dataset, Part, Wanted, idx, load, named_sets, validate

IMAGES = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
LABELS = np.array([0, 2], np.uint8)


def made(images=IMAGES, labels=LABELS, test_images=None, test_labels=None, **wanted) -> Dataset:
    """``validate`` with parts named IMAGES, LABELS, TEST-IMAGES and TEST-LABELS."""
    return validate(
        "name",
        Part("IMAGES", images),
        Part("LABELS", labels),
        None if test_images is None else Part("TEST-IMAGES", test_images),
        None if test_labels is None else Part("TEST-LABELS", test_labels),
        Wanted(**wanted),
    )


def test_a_good_set():
    found = made(IMAGES, LABELS, IMAGES[:1] + 1, LABELS[1:])
    assert (found.name, found.image_shape, found.classes) == ("name", (4, 3), 3)
    np.testing.assert_array_equal(found.images, IMAGES.reshape(2, 12))
    np.testing.assert_array_equal(found.test_images, IMAGES[:1].reshape(1, 12) + 1)
    assert found.labels.tolist() == [0, 2]
    assert found.test_labels.tolist() == [2]
    assert found.labels.dtype == found.test_labels.dtype == np.int32


@pytest.mark.parametrize(
    ("shape", "image"),
    [
        ((2, 12), (12,)),
        ((2, 4, 3), (4, 3)),
        ((2, 4, 3, 1), (4, 3)),
        ((2, 2, 2, 3), (2, 2, 3)),
        ((2, 12, 1), (12, 1)),
    ],
)
def test_image_shape(shape, image):
    found = made(IMAGES.reshape(shape))
    assert found.image_shape == image
    assert found.images.shape == (2, 12)


@pytest.mark.parametrize("dtype", ["u1", "i2", ">i2", "i4", "i8", "u8", "?"])
def test_small_integers_become_uint8(dtype):
    assert made(IMAGES.astype(dtype)).images.dtype == np.uint8
    np.testing.assert_array_equal(made(IMAGES.astype(dtype)).images, IMAGES.reshape(2, 12).astype(dtype))


@pytest.mark.parametrize("pixel", [-1, 256])
@pytest.mark.parametrize("half", ["training", "test"])
def test_integers_beyond_a_byte_make_both_halves_float32(pixel, half):
    odd = IMAGES.astype(np.int64)
    odd[0, 0, 0] = pixel
    found = made(odd, LABELS, IMAGES, LABELS) if half == "training" else made(IMAGES, LABELS, odd, LABELS)
    assert found.images.dtype == found.test_images.dtype == np.float32
    assert (found.images if half == "training" else found.test_images)[0, 0] == pixel


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f8", "g"])
def test_floats_become_float32(dtype):
    found = made((IMAGES / 2).astype(dtype))
    assert found.images.dtype == np.float32
    assert found.images.dtype.isnative
    np.testing.assert_array_equal(found.images, IMAGES.reshape(2, 12) / np.float32(2))


FINE = IMAGES / 255  # float32 rounds most of these


@pytest.mark.parametrize("half", ["training", "test"])
@pytest.mark.parametrize("images", [FINE, FINE.astype("g"), FINE.astype(">f8"), IMAGES + np.int64(1 << 24)])
def test_under_float64_pixels_keep_the_bits_that_float32_would_round(images, half):
    def found(dtype):
        parts = (images, LABELS, IMAGES, LABELS) if half == "training" else (IMAGES, LABELS, images, LABELS)
        return made(*parts, dtype=dtype)

    fine, rounded = found("float64"), found("float32")
    assert (fine.images.dtype, fine.test_images.dtype) == (np.float64, np.float64)
    assert (rounded.images.dtype, rounded.test_images.dtype) == (np.float32, np.float32)
    mine = fine.images if half == "training" else fine.test_images
    np.testing.assert_array_equal(mine, images.astype(np.float64).reshape(2, 12))
    assert fine.images.dtype.isnative and fine.warnings == rounded.warnings == ()


@pytest.mark.parametrize("images", [IMAGES - 0.5, IMAGES * -1.0, FINE.astype("f4"), FINE.astype("f2")])
def test_under_float64_pixels_that_float32_has_stay_as_they_were(images):
    """So does the digest of the data in a checkpoint."""
    assert made(images, dtype="float64").images.dtype == np.float32
    assert made(dtype="float64").images.dtype == np.uint8


def test_all_pixels_are_looked_at_for_bits_that_float32_lacks(monkeypatch):
    monkeypatch.setattr("nn.input.dataset.CHUNK", 12)  # an image at a time
    images = IMAGES - 0.5
    images[1, 3, 2] += 1e-9
    assert made(images, dtype="float64").images[1, 11] == images[1, 3, 2]


def test_pixels_beyond_float32_are_refused_or_said_to_become_0(refused):
    huge, small = IMAGES * 1e300, np.where(IMAGES % 12 == 5, 1e-60, IMAGES.astype(float))
    with refused("IMAGES", "image 0", "not finite in float32", "use --dtype float64, repair or remove it"):
        made(huge)
    assert made(huge, dtype="float64").images.max() == 23e300
    with refused("IMAGES", "image 1", "not finite in float64: repair or remove it"):
        made(np.where(IMAGES == 13, np.nan, huge), dtype="float64")
    what = "pixels are too small for float32 and become 0"
    advice = "use --dtype float64, or save them on a larger scale"
    assert made(small, LABELS, small[:1], LABELS[:1]).warnings == (
        f"IMAGES: 2 {what}: {advice}",
        f"TEST-IMAGES: 1 {what}: {advice}",
    )
    kept = made(small, dtype="float64")
    assert kept.images[0, 5] == 1e-60 and kept.warnings == ()


@pytest.mark.parametrize("dtype", ["u1", "i8"])
def test_labels_in_a_column_as_keras_saves_some(dtype):
    column = LABELS.astype(dtype)[:, None]
    found = made(IMAGES, column, IMAGES, column[::-1])
    assert (found.labels.tolist(), found.test_labels.tolist()) == ([0, 2], [2, 0])


@pytest.mark.parametrize("dtype", ["f4", "f8", "u1", "i8", "?"])
def test_one_hot_labels_are_refused_with_how_to_turn_them(refused, dtype):
    hot = np.eye(3)[LABELS].astype(dtype)
    with refused("LABELS", "one-hot labels of shape (2, 3)", "labels.argmax(axis=1)"):
        made(labels=hot)
    with refused("TEST-LABELS", "one-hot labels of shape (2, 3)", "labels.argmax(axis=1)"):
        made(test_images=IMAGES, test_labels=hot)
    for other in (2 * hot.astype(int), np.ones((2, 3)), np.zeros((2, 3)), hot[:, :, None]):
        with refused("LABELS", "labels of shape (2, 3", "(images here? then the two are swapped)"):
            made(labels=other)


def test_the_number_of_classes_may_be_given(refused):
    assert [made(classes=classes).classes for classes in (None, 3, 12)] == [3, 3, 12]
    with refused("--classes 2", "LABELS has label 2", "give 3 or more"):
        made(classes=2)
    tested = IMAGES, LABELS, IMAGES, np.array([3, 0])
    assert made(*tested, classes=4).classes == 4
    with refused("--classes 3", "TEST-LABELS has label 3", "give 4 or more"):
        made(*tested, classes=3)
    with refused("TEST-LABELS", "label 3", "largest training label is 2", "--classes 4"):
        made(*tested)


def test_rows_are_contiguous_whatever_the_file_held():
    for images in (np.asfortranarray(IMAGES.reshape(2, 12)), np.asfortranarray(IMAGES / 2), IMAGES[::-1]):
        found = made(images)
        assert found.images.flags.c_contiguous
        np.testing.assert_array_equal(found.images, images.reshape(2, 12))


def test_a_class_may_have_no_image():
    assert made(labels=np.array([1, 26], np.uint8)).classes == 27


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"images": IMAGES[:1]}, ["IMAGES", "1 images", "2 labels in LABELS"]),
        ({"images": IMAGES[0, 0]}, ["IMAGES", "two swapped"]),
        ({"images": np.array(3)}, ["IMAGES", "shape ()"]),
        ({"images": IMAGES.reshape(2, 1, 1, 4, 3)}, ["IMAGES", "shape (2, 1, 1, 4, 3)"]),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, ["IMAGES", "no images"]),
        ({"images": IMAGES[:, :0]}, ["IMAGES", "no images"]),
        ({"images": IMAGES.astype("S3")}, ["IMAGES", "type |S3"]),
        ({"images": IMAGES.astype("U3")}, ["IMAGES", "type <U3"]),
        ({"images": IMAGES.astype(complex)}, ["IMAGES", "type complex128"]),
        ({"images": IMAGES.astype(object)}, ["IMAGES", "type object"]),
        ({"images": IMAGES.astype("M8[s]")}, ["IMAGES", "type datetime64"]),
        ({"images": np.where(IMAGES == 13, np.nan, IMAGES)}, ["IMAGES", "image 1", "not finite"]),
        ({"images": np.where(IMAGES == 3, np.inf, IMAGES)}, ["IMAGES", "image 0", "not finite"]),
        ({"images": np.where(IMAGES == 3, 1e300, IMAGES)}, ["IMAGES", "image 0", "not finite"]),
        ({"labels": IMAGES}, ["LABELS", "two are swapped"]),
        ({"labels": LABELS[:0]}, ["LABELS", "no labels"]),
        ({"labels": LABELS.astype(float)}, ["LABELS", "type float64", "labels.astype(int)"]),
        ({"labels": LABELS.astype(bool)}, ["LABELS", "type bool"]),
        ({"labels": LABELS.astype("S1")}, ["LABELS", "type |S1"]),
        ({"labels": np.array([0, -3])}, ["LABELS", "label -3 is negative"]),
        ({"labels": np.array([0, 1 << 40])}, ["LABELS", f"label {1 << 40}"]),
        ({"labels": np.array([0, 65536])}, ["LABELS", "label 65536"]),
        ({"test_images": IMAGES}, ["TEST-IMAGES", "no test labels"]),
        ({"test_labels": LABELS}, ["TEST-LABELS", "no test images"]),
        ({"test_images": IMAGES, "test_labels": LABELS[:1]}, ["TEST-IMAGES", "1 labels in TEST-LABELS"]),
        ({"test_images": IMAGES[:0], "test_labels": LABELS[:0]}, ["TEST-IMAGES", "no images"]),
        ({"test_images": IMAGES, "test_labels": np.array([3, 0])}, ["TEST-LABELS", "label 3", "label is 2"]),
        ({"test_images": IMAGES, "test_labels": np.array([0, -1])}, ["TEST-LABELS", "negative"]),
        (
            {"test_images": IMAGES[:, :2], "test_labels": LABELS},
            ["TEST-IMAGES", "(2, 3), but (4, 3) in IMAGES"],
        ),
        ({"test_images": IMAGES * np.nan, "test_labels": LABELS}, ["TEST-IMAGES", "not finite"]),
        ({"test_images": IMAGES.astype("U3"), "test_labels": LABELS}, ["TEST-IMAGES", "type <U3"]),
    ],
)
def test_what_is_no_data_set(refused, parts, words):
    with refused(*words):
        made(**parts)


# --- load ----------------------------------------


def test_embedded_digits():
    found = load("embedded")
    assert found.name == "embedded digits (mnist5k)"
    assert found.images.shape == (4000, 784)
    assert found.test_images.shape == (1000, 784)
    assert found.image_shape == (28, 28)
    assert found.classes == 10
    assert found.images.dtype == found.test_images.dtype == np.uint8
    both = np.concatenate([found.labels, found.test_labels])
    assert np.bincount(both).tolist() == [500] * 10


def test_embedded_digits_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load("embedded").images.shape == (4000, 784)


def test_mnist_is_read_from_where_it_was_downloaded(tmp_path, data_set, monkeypatch):
    data_set(tmp_path, packed=True)
    monkeypatch.setattr(named_sets, "fetch", lambda named: tmp_path)
    assert load("mnist").name == "MNIST"
    assert load("mnist").images.shape == (6, 12)


def test_a_directory_and_an_npz(tmp_path, data_set):
    folder = tmp_path / "folder.npz"  # a directory is one whatever it is called
    folder.mkdir()
    data_set(folder)
    found = load(str(folder))
    assert found.name == str(folder)
    file = tmp_path / "file.NPZ"
    with open(file, "wb") as stream:
        np.savez(stream, x_train=found.images, y_train=found.labels)
    assert load(str(file)).name == str(file)
    assert load(str(file)).image_shape == (12,)


@pytest.mark.parametrize("source", ["", "mnits", "/no/such/directory", "two\nlines", "nul\0"])
def test_anything_else_names_all_choices(refused, source):
    files = (
        "directory of IDX files",
        "CIFAR's binary files",
        "class folders of images",
        ".npz, .csv, .csv.gz, .tar.gz",
    )
    with refused("embedded", *named_sets.SETS, "synthetic:HxWxC:CLASSES:N", *files):
        load(source)


def test_a_file_of_another_name_names_all_choices(tmp_path, data_set, refused):
    data_set(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    with refused(path, "embedded"):
        load(str(path))


def test_an_npz_that_is_not_there(tmp_path, refused):
    with refused(tmp_path / "gone.npz", "No such file"):
        load(str(tmp_path / "gone.npz"))


def test_a_set_is_validated_whichever_reader_read_it(tmp_path, idx_bytes, refused):
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx_bytes(np.full((2, 1, 1), np.nan, np.float32)))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(LABELS))
    with refused(tmp_path / "train-images-idx3-ubyte", "not finite"):
        idx.load(tmp_path)
