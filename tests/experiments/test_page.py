"""experiments/page.py and figures.py: one file with all in it, and Markdown beside the figures."""

import re

import pytest

pd = pytest.importorskip("pandas")
pytest.importorskip("matplotlib")

from experiments import figures, page
from experiments.study import Figure, Section, Table


@pytest.fixture
def part(tmp_path):
    folder = tmp_path / "speed"
    folder.mkdir()
    canvas, axes = figures.canvas()
    axes.plot([1, 2], [3, 4], **figures.style(1))
    drawn = Figure(figures.save(canvas, folder, "steps"), "Steps a second <of> ranks.")
    table = Table(
        "Of each rank.", pd.DataFrame({"ranks": [1, 20000], "us": [0.123456, 12345.6], "why": ["", None]})
    )
    section = Section(["Two ranks are 1.9 times as fast & cheap."], [drawn], [table])
    return page.Part("speed", "Speed", "How fast?", section, ["no GPU"], {"CPU": "one"}, folder)


def test_the_page_needs_no_other_file_and_escapes_what_it_is_told(part, tmp_path):
    page.write(tmp_path / "index.html", [part])
    text = (tmp_path / "index.html").read_text()
    assert "1.9 times as fast &amp; cheap" in text
    assert "Steps a second &lt;of&gt; ranks." in text
    assert "Missing: no GPU" in text
    sources = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert len([source for source in sources if source.startswith("data:image/png;base64,")]) == 1
    assert all(source.startswith(("data:", "#")) for source in sources)


def test_what_all_were_measured_on_is_said_once_and_the_rest_in_its_section(part, tmp_path):
    other = page.Part("size", "Size", "?", Section(), [], {"CPU": "one", "GPUs": "two"}, tmp_path)
    page.write(tmp_path / "index.html", [part, other])
    text = (tmp_path / "index.html").read_text()
    assert text.count("<dt>CPU</dt><dd>one</dd>") == 1
    assert text.index("<dt>CPU</dt>") < text.index('<section id="speed"')
    assert text.index("<dt>GPUs</dt>") > text.index('<section id="size"')


def test_a_section_is_markdown_too(part):
    page.write_markdown(part)
    text = (part.folder / "section.md").read_text()
    assert text.startswith("# Speed\n\nHow fast?\n\n- Two ranks")
    assert "(steps.png)" in text and "- missing: no GPU" in text
    last = [cell.strip() for cell in text.splitlines()[-1].split("|")]
    assert last == ["", "20,000", "12,346", "", ""]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123456, "0.0123"), (12345.6, "12,346"), (12345, "12,345"), (999, "999"), (None, ""), ("a", "a")],
)
def test_a_cell_has_three_digits_that_count(value, text):
    assert page.cell(value) == text
    assert page.cell(float("nan")) == ""


def test_a_heatmap_writes_the_numbers_that_are_there():
    values = pd.DataFrame([[1.0, float("nan")], [0.25, 2.0]], index=[1, 2], columns=[10, 20])
    _, axes = figures.canvas()
    figures.heatmap(axes, values.rename_axis(index="a", columns="b"), "{:.2f}", "c")
    assert {text.get_text() for text in axes.texts} == {"1.00", "0.25", "2.00"}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("b", "a")


def test_dots_are_those_of_the_curve_with_no_line_between_them():
    _, axes = figures.canvas()
    for number in (0, 9):
        (curve,), (dots,) = (
            axes.plot([1, 2], [3, 4], **look(number)) for look in (figures.style, figures.dots)
        )
        assert (dots.get_color(), dots.get_marker()) == (curve.get_color(), curve.get_marker())
        assert dots.get_linestyle() == "None" != curve.get_linestyle()
