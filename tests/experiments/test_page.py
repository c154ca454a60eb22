"""experiments/page.py and figures.py: one file with all in it, and Markdown beside the figures."""

import re

import pytest

pd = pytest.importorskip("pandas")
pytest.importorskip("matplotlib")

from experiments import figures, glossary, page
from experiments.noise import noisy
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
    section = Section([], [drawn], [table])
    section.find("steps", "Two ranks are 1.9 times as fast & cheap.")
    section.find(None, "Ranks have a throughput.")
    return page.Part("speed", "Speed", "How fast?", section, ["no GPU"], {"CPU": "one"}, folder)


def test_the_page_needs_no_other_file_and_escapes_what_it_is_told(part, tmp_path):
    page.write(tmp_path / "index.html", [part])
    text = (tmp_path / "index.html").read_text()
    assert 'as fast &amp; cheap (<a href="#speed-steps">figure steps</a>).' in text
    assert '<figure id="speed-steps">' in text and "<b>Figure steps.</b>" in text
    assert re.search("have a <a [^>]*>throughput</a> .table.[.]", text)
    assert "Steps a second &lt;of&gt; ranks." in text
    assert "Missing: no GPU" in text
    sources = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert len([source for source in sources if source.startswith("data:image/png;base64,")]) == 1
    assert all(source.startswith(("data:", "#")) for source in sources)


def test_terms_are_linked_where_a_section_first_has_them(part, tmp_path):
    page.write(tmp_path / "index.html", [part])
    text = (tmp_path / "index.html").read_text()
    assert 'Two <a class="term" href="#term-rank">ranks</a> are' in text
    assert text.count('href="#term-rank"') == 1
    assert '<dt id="term-rank">rank</dt><dd>one process of an MPI job</dd>' in text
    links = set(re.findall(r'href="#([^"]+)"', text))
    assert links <= set(re.findall(r'id="([^"]+)"', text))


def test_terms_are_whole_words_and_never_within_a_link():
    linker = glossary.Linker("one")
    linked = str(linker.linked("Frank's bank-ranks, an all-reduce <rank> (figure rank)"))
    assert linked.count("<a ") == 3 and "bank-ranks" in linked and "&#39;s" in linked
    assert '<a href="#one-rank">figure rank</a>' in linked and "&lt;" in linked
    assert set(linker.used) == {"rank", "all-reduce"}


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


def test_no_two_curves_look_the_same():
    looks = [(style["color"], style["marker"]) for style in map(figures.style, range(24))]
    assert len(set(looks)) == 24 and len(set(figures.COLOURS)) == len(figures.COLOURS)


def test_two_points_are_not_joined(tmp_path):
    canvas, axes = figures.canvas()
    (two,) = axes.plot([1, 2], [3, 4], **figures.style(0))
    (three,) = axes.plot([1, 2, 3], [3, 4, 5], **figures.style(1))
    (ideal,) = axes.plot([1, 2], [1, 2], color="black", linestyle=":")
    figures.save(canvas, tmp_path, "two")
    assert [line.get_linestyle() for line in (two, three, ideal)] == ["None", "-", ":"]


def test_repeats_are_all_there_with_their_mean(tmp_path):
    _, axes = figures.canvas()
    figures.repeats(axes, {1: [1.0, 3.0], 2: [5.0]}, 0, "x")
    points, means = axes.lines[0], axes.lines[1]
    assert list(points.get_xdata()) == [1, 1, 2] and list(points.get_ydata()) == [1, 3, 5]
    assert list(means.get_ydata()) == [2, 5]


@pytest.mark.parametrize(("most", "said"), [(1.05, 0), (1.5, 1)])
def test_a_noisy_machine_is_told(most, said):
    ones = pd.Series([1.0, 2.0, 3.0])
    assert len(noisy(ones, ones, most * ones)) == said
    assert not noisy(pd.Series(dtype=float), pd.Series(dtype=float), pd.Series(dtype=float))
