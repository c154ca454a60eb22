"""What ranks should split, samples or weights: bytes and time of each plan over width and batch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments import figures, jobs
from experiments.study import Figure, Point, Row, Section, Setup, Table, Taken

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from bench.plans import Case
    from nn.plan import Plan
    from nn.plan.cost import Cost
    from nn.plan.rates import Rates
    from pyrt.job import Job

TITLE = "Plans: data, model and mixed"
QUESTION = (
    "When should ranks split the batch (data), the weights (model) or both (mixed: groups of ranks, or some "
    "layers each way)? Every plan of 784-H-H-10 in float32 is predicted by the cost model of nn/plan over H "
    "and the batch; some are trained, and their steps timed; of some the bytes are counted that they give to "
    "MPI."
)
COLUMNS = (
    *("kind", "rates", "planned", "grid", "ranks", "device", "hidden", "batch"),
    *("card", "plan", "family", "groups", "shards", "predicted_us", "sent", "messages"),
    *("weights", "activations", "measured_us", "least_us", "most_us", "counted", "counted_messages"),
)
"""``planned``: for how many ranks the plans are. ``sent``: bytes of a rank and step; ``weights``, gradients
with them, and ``activations``: bytes that a rank holds."""

MAP, TIMED, COUNTED = "map", "timed", "counted"

DATA, MODEL, MIXED = FAMILIES = ("data", "model", "mixed")
FORK_AND_JOIN = "fork and join"

HERE = "here"
"""The rates of the machine that measures; else those of a file of nn/plan/machines."""
FILES = {"h200": 4, "h100-cluster": 64}
"""Those, and for how many GPUs plans are predicted."""


class Grid(NamedTuple):
    """Of a map."""

    hidden: tuple[int, ...]
    batches: tuple[int, ...]


GRIDS = {
    "small": Grid((256, 1024, 4096, 16384), (256, 1024, 4096, 16384)),
    "full": Grid((512, 1024, 2048, 4096, 8192), (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)),
    "cpu": Grid((32, 128, 512, 2048), (32, 128, 512, 2048)),
}

CELLS_TIMED = {
    "small": [(1024, 1024), (4096, 256), (4096, 4096)],
    "full": [
        *((hidden, batch) for hidden in (1024, 4096) for batch in (512, 2048, 8192)),
        *((8192, batch) for batch in (512, 8192)),
    ],
    "cpu": [(128, 32), (128, 512), (128, 2048), (512, 32), (512, 128)],
}
"""H and batch of each map's cells that are measured, too. The widest networks take seconds to start."""

SPAN, EPOCHS, WARM_UP = 20e-3, 4, 1
"""Seconds that an epoch should take, epochs, and those of them that do not count."""

LEAST, MOST = 16, 96
"""Steps of an epoch."""

COUNTING_RANKS, COUNTED_HIDDEN = 4, 256
BATCHES_COUNTED = {"small": (16, 128, 1024), "full": (16, 64, 256, 1024, 4096)}


def points(setup: Setup) -> list[Point]:
    several = {"ranks": COUNTING_RANKS, "device": "cpu"}
    found: list[Point] = [
        {"kind": MAP, "rates": name, "planned": gpus, "grid": setup.size, **several}
        for name, gpus in FILES.items()
    ]
    found += [
        {"kind": COUNTED, "planned": COUNTING_RANKS, **several, "hidden": COUNTED_HIDDEN, "batch": batch}
        for batch in BATCHES_COUNTED[setup.size]
    ]
    ranks = setup.ranks[-1]
    if ranks > 1:
        grid = setup.size if setup.gpus else "cpu"
        here = {"rates": HERE, "planned": ranks, "ranks": ranks, "device": setup.device}
        found.append({"kind": MAP, **here, "grid": grid})
        found += [
            {"kind": TIMED, **here, "hidden": hidden, "batch": batch} for hidden, batch in CELLS_TIMED[grid]
        ]
    return found


def take(points: Sequence[Point], setup: Setup) -> Iterator[Taken]:
    return jobs.measured(__name__, points, setup)


def missing(setup: Setup) -> list[str]:
    if setup.gpus == 0:
        return ["steps on GPUs: no GPU is used here; small networks are timed on the CPU instead"]
    if setup.gpus == 1:
        return ["measured steps: one GPU has nothing to split; maps are predicted, bytes counted on the CPU"]
    if setup.gpus != 4:
        return [f"measured groups of ranks that split weights: 2 x 2 takes 4 GPUs, here are {setup.gpus}"]
    return []


def measure(point: Point, job: Job, folder: Path) -> list[Row]:
    """A row a plan; of a map a row for each plan of each cell."""
    return {MAP: _map, TIMED: _timed, COUNTED: _counted}[point["kind"]](point, job)


def _case(hidden: int, batch: int) -> Case:
    from bench.plans import Case

    return Case((hidden, hidden), batch)


def _file(name: str) -> Rates:
    import nn.plan
    from nn.plan import rates

    return rates.load(Path(nn.plan.__file__).parent / "machines" / f"{name}.json")


def family_of(plan: Plan) -> str:
    """Whether it cuts samples alone, all weights over all ranks, or both."""
    from nn.plan import SAMPLES

    if plan.is_data:
        return DATA
    return MODEL if plan.groups == 1 and SAMPLES not in plan.splits else MIXED


def described(plan: Plan) -> str:
    """In few words: ``mixed, 2 x 2: rows, columns, columns``."""
    if plan.is_data:
        return DATA
    return f"{family_of(plan)}, {plan.groups} x {plan.shards}: {', '.join(plan.splits)}"


def _row(plan: Plan, cost: Cost) -> Row:
    memory = cost.memory
    return {
        "plan": described(plan),
        "family": family_of(plan),
        "groups": plan.groups,
        "shards": plan.shards,
        "predicted_us": cost.seconds * 1e6,
        "sent": cost.sent,
        "messages": cost.messages,
        "weights": memory.weights + memory.gradients,
        "activations": memory.activations,
    }


def _map(point: Point, job: Job) -> list[Row]:
    """Each rank predicts some of the cells."""
    from bench.plans import rates_here

    name, grid = point["rates"], GRIDS[point["grid"]]
    rates = rates_here(point["device"], job) if name == HERE else _file(name)
    cells = [(hidden, batch) for hidden in grid.hidden for batch in grid.batches]
    mine = [row for cell in cells[job.rank :: job.size] for row in _cell(*cell, point["planned"], rates)]
    return [row for part in job.comm.allgather(mine) for row in part]


def _cell(hidden: int, batch: int, ranks: int, rates: Rates) -> Iterator[Row]:
    """All plans that fit a rank's memory; none where none does."""
    from bench.plans import candidates, search_of
    from pyrt.errors import UserError

    search = search_of(_case(hidden, batch), ranks, rates)
    common = {"card": rates.device.name, "hidden": hidden, "batch": batch}
    try:
        best = search.best()
    except UserError:
        return
    for _, plan, cost in candidates(search, best):
        yield {**common, **_row(plan, cost)}
    forked = search.fork_and_join()
    if forked is not None:
        names = {"plan": FORK_AND_JOIN, "family": FORK_AND_JOIN}
        yield {**common, **names, "predicted_us": forked.seconds * 1e6, "sent": forked.sent}


def steps_of(seconds: float) -> int:
    """Of an epoch whose steps should take so long. A run on a device looks at the clock each `READ_EVERY`
    steps: a multiple of that."""
    from nn.training import READ_EVERY

    steps = min(max(SPAN / seconds, LEAST), MOST)
    return READ_EVERY * round(steps / READ_EVERY)


def _timed(point: Point, job: Job) -> list[Row]:
    from bench.plans import Length, candidates, rates_here, search_of, seconds
    from bench.timing import Times

    device, case = point["device"], _case(point["hidden"], point["batch"])
    rates = rates_here(device, job)
    search, rows = search_of(case, job.size, rates), []
    with tempfile.TemporaryDirectory() as scratch:
        shared = job.comm.bcast(scratch)
        for _, plan, cost in candidates(search, job.comm.bcast(search.best())):
            length = Length(EPOCHS, WARM_UP, steps_of(cost.seconds))
            times = Times.of(seconds(case, plan, shared, job, device, length))
            us = {"measured_us": times.median, "least_us": times.least, "most_us": times.most}
            rows.append({"card": rates.device.name, **_row(plan, cost), **us})
    return rows


def _plans_counted(ranks: int) -> list[Plan]:
    """Of three layers: one of each sort."""
    from nn.plan import COLUMNS, ROWS, SAMPLES, Plan

    return [
        Plan.data(ranks, 3),
        Plan.model(1, ranks, 3),
        Plan(1, ranks, (ROWS, ROWS, COLUMNS)),
        Plan.model(ranks // 2, 2, 3),
        Plan(1, ranks, (ROWS, SAMPLES, SAMPLES)),
    ]


def _counted(point: Point, job: Job) -> list[Row]:
    """One step of a run through host memory on the CPU, and what the formulas say of it."""
    from dataclasses import replace

    import numpy as np

    from bench.counting import sent_in_run
    from bench.plans import CLASSES, INPUTS, RATE, search_of
    from nn.options import Options
    from nn.plan.paper import Device

    case, rows = _case(point["hidden"], point["batch"]), []
    # Bytes depend on the way of the exchange, not on how fast anything is.
    search = search_of(case, job.size, replace(_file("h200"), device=Device(), exchange="host", gemm="auto"))
    with tempfile.TemporaryDirectory() as scratch:
        shared = Path(job.comm.bcast(scratch))
        data = shared / "images.npz"
        if job.rank == 0:  # no test set: its scores would be counted
            images = np.random.default_rng(0).integers(0, 256, (case.batch, 1, INPUTS), np.uint8)
            np.savez(data, x_train=images, y_train=np.arange(case.batch) % CLASSES)
        options = Options(
            data=str(data),
            hidden=case.hidden,
            batch=case.batch,
            epochs=1,
            lr=RATE,
            val_fraction=0.0,
            device="cpu",
            exchange="host",
        )
        for plan in _plans_counted(job.size):
            cost, counted = search.cost(plan), sent_in_run(options, plan, shared, job)
            assert cost is not None
            itemsize = np.dtype(options.dtype).itemsize
            numbers = {
                "counted": counted["elements"] * itemsize,
                "counted_messages": counted["messages"],
            }
            rows.append({**_row(plan, cost), "predicted_us": None, **numbers})
    return rows


def section(rows: pd.DataFrame, setup: Setup) -> Section:
    result = Section()
    rows = rows.astype(dict.fromkeys(("planned", *CELL), int))  # floats where a failed point has none
    maps, timed, counted = (rows[rows.kind == kind] for kind in (MAP, TIMED, COUNTED))
    of_rates = [mine for name in (HERE, *FILES) if len(mine := maps[maps.rates == name])]
    for mine in of_rates:
        _draw_map(mine, timed, setup, result)
    if of_rates:
        _draw_crossover(of_rates[0], timed, setup, result)
    if len(timed):
        _draw_times(timed, setup, result)
    if len(counted):
        _draw_bytes(counted, setup, result)
    return result


CELL = ["hidden", "batch"]


def best_of(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Of each cell the plan that takes least by this column, with ``gain``: how many times as fast as data it
    is, empty where data does not fit."""
    plans = rows[rows.family != FORK_AND_JOIN]
    best = plans.loc[plans.groupby(CELL)[column].idxmin()].set_index(CELL)
    data = plans[plans.family == DATA].set_index(CELL)[column]
    return best.assign(gain=data / best[column]).reset_index()


def borders(best: pd.DataFrame) -> str:
    """For which batches another plan than data is best, by width: up to the largest that there is."""
    others = best[best.family != DATA].groupby("hidden").batch.max()
    of_border: dict[int, list[int]] = {}
    for hidden in sorted(best.hidden.unique()):
        of_border.setdefault(int(others.get(hidden, 0)), []).append(hidden)
    words = {0: "at no batch", best.batch.max(): f"up to the largest batch here, {best.batch.max()},"}
    return "; ".join(
        f"{words.get(border, f'up to batch {border}')} at H {', '.join(map(str, widths))}"
        for border, widths in of_border.items()
    )


def _ranks(rows: pd.DataFrame) -> str:
    """How many of what."""
    first = rows.iloc[0]
    if first.rates == HERE and first.device == "cpu":
        return f"{first.planned} ranks of this CPU"
    return f"{first.planned} x {first.card}"


def _machine(rows: pd.DataFrame) -> str:
    """The ranks, and where their rates are from."""
    name = rows.iloc[0].rates
    source = "rates measured here" if name == HERE else f"rates of nn/plan/machines/{name}.json"
    return f"{_ranks(rows)} ({source})"


def _draw_map(rows: pd.DataFrame, timed: pd.DataFrame, setup: Setup, result: Section) -> None:
    from bench.plans import CLOSE

    best, machine = best_of(rows, "predicted_us"), _machine(rows)
    counts = best.family.value_counts()
    wins = ", ".join(f"{family} in {counts.get(family, 0)}" for family in FAMILIES)
    result.findings.append(
        f"{machine}: predicted best is {wins} of {len(best)} cases; by more than {CLOSE:.0%} over data in "
        f"{(best.gain > 1 + CLOSE).sum()}. Another plan than data is best {borders(best)}."
    )
    if best.gain.notna().any():
        result.findings.append(_most_gained(rows, best))
    figure, axes = figures.canvas()
    _draw_cells(axes, best)
    caption = (
        f"Which plan should be fastest on {machine}, how its ranks are grouped (groups x shards; mixed in "
        "one group: some layers by samples), and how many times as fast as data it is. Below the dashed line "
        "the batch has fewer samples than a layer has units: there to split weights sends less."
    )
    if len(timed) and rows.iloc[0].rates == HERE:
        _frame(axes, best, timed)
        caption += (
            " Framed cells were measured: the plan predicted best was the fastest or within a tenth of it "
            "(solid frame), or it was not (dotted)."
        )
    result.figures.append(Figure(figures.save(figure, setup.folder, f"map_{rows.iloc[0].rates}"), caption))


def _most_gained(rows: pd.DataFrame, best: pd.DataFrame) -> str:
    most = best.loc[best.gain.idxmax()]
    cell = rows[(rows.hidden == most.hidden) & (rows.batch == most.batch)]
    data = cell[cell.family == DATA].iloc[0]
    return (
        f"{_machine(rows)}: most is gained at H {most.hidden}, batch {most.batch}, by {most.plan}: "
        f"{most.gain:.2f} x as fast as data, {most.predicted_us:,.0f} against {data.predicted_us:,.0f} us; "
        f"{_mb(most.sent)} against {_mb(data.sent)} MB sent; {_mb(most.weights)} against {_mb(data.weights)} "
        "MB of weights and gradients a rank."
    )


def _mb(nbytes: float) -> str:
    """Three digits that count."""
    return f"{nbytes * 1e-6:,.0f}" if nbytes >= 1e8 else f"{nbytes * 1e-6:.3g}"


def _draw_cells(axes: Axes, best: pd.DataFrame) -> None:
    from matplotlib.colors import ListedColormap

    hidden, batches = (sorted(best[name].unique()) for name in CELL)
    numbers = best.assign(number=best.family.map(FAMILIES.index)).pivot(
        index="batch", columns="hidden", values="number"
    )
    colours = ListedColormap(figures.COLOURS[: len(FAMILIES)])
    axes.imshow(numbers.to_numpy(float), cmap=colours, vmin=0, vmax=2, aspect="auto", origin="lower")
    axes.grid(False)
    axes.set_xticks(range(len(hidden)), [f"{size}" for size in hidden])
    axes.set_yticks(range(len(batches)), [f"{size}" for size in batches])
    axes.set(xlabel="units H of both hidden layers", ylabel="batch, samples")
    for row in best.itertuples():
        place = hidden.index(row.hidden), batches.index(row.batch)
        box = {"facecolor": figures.COLOURS[FAMILIES.index(row.family)], "edgecolor": "none", "pad": 1}
        middle = {"ha": "center", "va": "center", "size": 10, "color": "white", "weight": "bold"}
        axes.text(*place, _cell_text(row), bbox=box, **middle)
    _draw_diagonal(axes, hidden, batches)


def _cell_text(row: Any) -> str:
    """Family, grid, and how many times as fast as data."""
    if row.family == DATA:
        return DATA
    gain = f"{row.gain:.2f} x" if row.gain == row.gain else "data: no room"
    return f"{row.family} {row.groups:.0f}x{row.shards:.0f}\n{gain}"


def _draw_diagonal(axes: Axes, hidden: list[int], batches: list[int]) -> None:
    """Where the batch has as many samples as a layer has units; both go up by a factor."""
    import numpy as np

    if len(hidden) < 2 or len(batches) < 2:
        return
    limits = axes.axis()
    equal = np.log([min(hidden[0], batches[0]) / 4, max(hidden[-1], batches[-1]) * 4])
    places = [(equal - np.log(sizes[0])) / np.log(sizes[1] / sizes[0]) for sizes in (hidden, batches)]
    axes.plot(*places, "--", color="black", linewidth=1.5)
    axes.axis(limits)


def judged(timed: pd.DataFrame) -> pd.DataFrame:
    """Of each measured cell the plan predicted best and the fastest, and by what part it takes more."""
    predicted = best_of(timed, "predicted_us").set_index(CELL)
    fastest = best_of(timed, "measured_us").set_index(CELL)
    return predicted.assign(
        fastest=fastest.plan,
        fastest_us=fastest.measured_us,
        fastest_gain=fastest.gain,
        more=predicted.measured_us / fastest.measured_us - 1,
    ).reset_index()


def _frame(axes: Axes, best: pd.DataFrame, timed: pd.DataFrame) -> None:
    """The cells that were measured."""
    from matplotlib.patches import Rectangle

    from bench.plans import CLOSE

    hidden, batches = (sorted(best[name].unique()) for name in CELL)
    for row in judged(timed).itertuples():
        if row.hidden in hidden and row.batch in batches:
            corner = hidden.index(row.hidden) - 0.46, batches.index(row.batch) - 0.44
            line = "-" if row.more <= CLOSE else ":"
            axes.add_patch(Rectangle(corner, 0.92, 0.88, fill=False, linewidth=3, linestyle=line, zorder=4))


def _draw_crossover(mine: pd.DataFrame, timed: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Step times as multiples of data's over the batch, of the width at which the best plan changes most;
    of those that were measured, if any were."""
    best, machine = best_of(mine, "predicted_us"), _machine(mine)
    forked = mine[mine.family == FORK_AND_JOIN].merge(best, on=CELL)
    if len(forked):
        ratio = forked.predicted_us_x / forked.predicted_us_y
        result.findings.append(
            f"The course's fork and join around every product would take {ratio.min():.1f} to "
            f"{ratio.max():.1f} times as long as the best plan on {_ranks(mine)}."
        )
    if mine.iloc[0].rates != HERE:
        timed = timed[:0]
    shown = best[best.hidden.isin(timed.hidden)] if len(timed) else best
    changes = (shown if len(shown) else best).groupby("hidden").family.nunique()
    hidden = changes[changes == changes.max()].index[-1]
    mine, timed = mine[mine.hidden == hidden], timed[timed.hidden == hidden]
    figure, axes = figures.canvas()
    for number, family in enumerate((*FAMILIES, FORK_AND_JOIN)):
        style = figures.style(number)
        predicted = relative(mine, family, "predicted_us")
        if len(predicted):
            axes.plot(predicted.index, predicted, label=family, **style | {"marker": "."})
        measured = relative(timed, family, "measured_us")
        if len(measured) and family != DATA:
            points = style | {"linestyle": ""}
            axes.plot(measured.index, measured, label=f"{family}, measured", markersize=11, **points)
    axes.set(xlabel="batch, samples", ylabel="step time over that of data", xscale="log", yscale="log")
    _plain_logarithms(axes, sorted(mine.batch.unique()))
    axes.legend(ncols=2)
    caption = (
        f"Step time of the best plan of each sort over that of data, H = {hidden}, on {machine}: lines are "
        "predicted, large points measured. Below 1 data is beaten. Fork and join: one rank sends out and "
        "collects each product (predicted only)."
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "crossover"), caption))


def _plain_logarithms(axes: Axes, x: list[Any], room: float = 2.0) -> None:
    """Plain numbers at both axes, and room for a legend at the top, ``room`` times the largest value."""
    figures.plain_ticks(axes, "x", x)
    low, high = axes.get_ylim()
    leading = (1, 2, 5) if high < 100 * low else (1, 3)
    steps = [step * 10.0**power for power in range(-6, 7) for step in leading]
    figures.plain_ticks(axes, "y", [step for step in steps if low <= step <= high])
    axes.set_ylim(low, high * room)


def relative(rows: pd.DataFrame, family: str, column: str) -> pd.Series:
    """Least time of the family's plans over that of data, by batch."""
    least = rows[rows.family == family].groupby("batch")[column].min()
    return (least / rows[rows.family == DATA].groupby("batch")[column].min()).dropna()


def _draw_times(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    from bench.plans import CLOSE

    cases, ratio, machine = judged(rows), rows.predicted_us / rows.measured_us, _machine(rows)
    exact, close = (cases.more == 0).sum(), (cases.more <= CLOSE).sum()
    result.findings.append(
        f"Measured on {machine}: the plan predicted best is the fastest in {exact} of {len(cases)} cases, "
        f"and within {CLOSE:.0%} of it in {close}; predicted times are {ratio.min():.2f} to "
        f"{ratio.max():.2f} of measured ones (median {ratio.median():.2f}, {len(rows)} plans)."
    )
    if cases.fastest_gain.notna().any():
        most = cases.loc[cases.fastest_gain.idxmax()]
        result.findings.append(
            f"The most that was measured over data: {most.fastest_gain:.2f} x at H {most.hidden}, batch "
            f"{most.batch} ({most.fastest})."
        )
    figure, axes = figures.canvas()
    for number, family in enumerate(FAMILIES):
        mine = rows[rows.family == family]
        if len(mine):
            points = figures.style(number) | {"linestyle": ""}
            axes.plot(mine.measured_us * 1e-3, mine.predicted_us * 1e-3, label=family, **points)
    both = [*rows.measured_us * 1e-3, *rows.predicted_us * 1e-3]
    ends = [min(both) * 0.8, max(both) * 1.25]
    axes.plot(ends, ends, color="black", linewidth=1, label="equal")
    axes.set(xlabel="measured, ms a step", ylabel="predicted, ms a step", xscale="log", yscale="log")
    ticks = [tick for tick in (0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300) if ends[0] <= tick <= ends[1]]
    _plain_logarithms(axes, ticks, room=1.0)
    axes.legend()
    caption = (
        f"Predicted against measured step times, {len(rows)} plans in {len(cases)} cases, on {machine}. "
        "Below the line a step took longer than predicted."
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "times"), caption))
    result.tables.append(_table(rows, cases))


def _table(rows: pd.DataFrame, cases: pd.DataFrame) -> Table:
    data = rows[rows.family == DATA].set_index(CELL).measured_us
    ratios = (rows.predicted_us / rows.measured_us).groupby([rows.hidden, rows.batch])
    spread = ratios.min().map("{:.2f}".format) + " to " + ratios.max().map("{:.2f}".format)
    columns = {
        "hidden": "H",
        "batch": "batch",
        "data_us": "data us",
        "plan": "predicted best",
        "measured_us": "its us",
        "fastest": "fastest",
        "fastest_us": "fastest us",
        "spread": "predicted / measured",
    }
    table = cases.set_index(CELL).assign(data_us=data, spread=spread).reset_index()
    return Table(
        "Measured cases, medians of a step: data, the plan predicted best and the fastest (groups x shards: "
        "how W1, W2, W3 are split); and predicted over measured times of all plans of the case.",
        table[list(columns)].rename(columns=columns),
    )


def _draw_bytes(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    ranks, hidden = rows.planned.iloc[0], rows.hidden.iloc[0]
    same = ((rows.counted == rows.sent) & (rows.counted_messages == rows.messages)).sum()
    result.findings.append(
        f"Bytes and messages that a rank of {ranks} gives to MPI in a step, counted, are exactly those of "
        f"the formulas in {same} of {len(rows)} runs (H {hidden}, {rows.plan.nunique()} plans)."
    )
    ends = rows[rows.family.isin([DATA, MODEL])].groupby(["batch", "family"]).counted.min().unstack() * 1e-6
    if {DATA, MODEL} <= set(ends.columns):
        model, batches = ends[MODEL], ends.index
        result.findings.append(
            f"Counted, data sends {ends[DATA].max():.2f} MB a step at any batch; the leanest model plan "
            f"{model.iloc[0]:.3f} MB at batch {batches[0]}, {model.iloc[-1]:.2f} MB at {batches[-1]}."
        )
    figure, axes = figures.canvas()
    for number, (plan, mine) in enumerate(rows.groupby("plan", sort=False)):
        style, ordered = figures.style(number), mine.sort_values("batch")
        axes.plot(ordered.batch, ordered.sent * 1e-6, color=style["color"])
        points = style | {"linestyle": ""}
        axes.plot(ordered.batch, ordered.counted * 1e-6, label=plan, markersize=9, **points)
    axes.set(xlabel="batch, samples", ylabel="MB that a rank sends a step", xscale="log", yscale="log")
    _plain_logarithms(axes, sorted(rows.batch.unique()), room=8.0)
    axes.legend(loc="upper left", fontsize=10)
    caption = (
        f"What rank 0 of {ranks} sends in a step of 784-{hidden}-{hidden}-10 in float32, by the formulas "
        "(lines) and counted at MPI (points); groups x shards, and how each layer is split. Data moves "
        "gradients, whatever the batch, model activations, mixed both."
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "bytes"), caption))
