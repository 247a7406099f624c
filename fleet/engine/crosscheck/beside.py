#!/usr/bin/env python3
"""The heaviest questions on facts, DataFusion beside DuckDB: the same files, in turns.

    beside.py --ask PROGRAM --store DIR [--week WEEK] [--rounds N]

PROGRAM is the example `ask` of fleet/weeks (`cargo build --release -p weeks --example ask`), DIR a
store whose weeks are closed (`dcpi-fleet simulate`, `close`). Each run is a process of its own;
times are of registering the files and of the question. Prints the median of the rounds and the
highest peak of memory.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import time

import pyarrow.parquet

from common import DuckDb, files, load, manifest, peak_mb, statement


def pairs_by_service(store, week):
    of = {}
    for path in files(store, week, "pairs"):
        of[pyarrow.parquet.read_table(path, columns=["service"])[0][0].as_py()] = path
    return dict(sorted(of.items()))


def week_before(store, week):
    weeks = sorted(path.name for path in (store / "weeks").iterdir())
    return weeks[weeks.index(week) - 1]


def duckdb(store, week, name, services):
    """Asks DuckDB, and prints seconds, rows and the peak of memory."""
    pairs, before = pairs_by_service(store, week), week_before(store, week)
    of = {"all": [None], "each": list(pairs)}.get(services) or [int(services)]
    engine = DuckDb()
    engine.register("host_weeks", files(store, week, "host_weeks"))
    listed = {(at, of): files(store, at, "facts", of) for at in (week, before) for of in of}
    begin = time.monotonic()
    rows = 0
    for service in of:
        engine.register("facts", listed[week, service])
        engine.register("facts_before", listed[before, service])
        engine.register("pairs", [pairs[service]] if service is not None else pairs.values())
        answer = engine.connection.execute(statement(name, service or 0))
        rows += answer.to_arrow_table().num_rows
    print(f"{time.monotonic() - begin:.3f} {rows} {peak_mb():.0f}")


def measured(command):
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(out[0]), int(out[1]), float(out[2])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ask", help="the example ask")
    parser.add_argument("--store", type=pathlib.Path, required=True)
    parser.add_argument("--week", default="2026-W41")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--duckdb", nargs=2, metavar=("STATEMENT", "SERVICES"),
                        help="only this, in this process")
    arguments = parser.parse_args()
    store, week = arguments.store.resolve(), arguments.week
    if arguments.duckdb:
        duckdb(store, week, *arguments.duckdb)
        return
    facts = [of for of in manifest(store, week)["files"] if of["table"] == "facts"]
    largest = str(max(facts, key=lambda of: of["rows"])["service"])
    print(f"{sum(of['rows'] for of in facts):,} facts a week, load {load()}")
    for name, services in [("builds", largest), ("movers", largest), ("heads", largest),
                           ("builds", "each"), ("movers", "each"), ("heads", "each"),
                           ("heads", "all")]:
        runs = {"DataFusion": [], "DuckDB": []}
        for _ in range(arguments.rounds):
            ask = [arguments.ask, store, week, name, services]
            runs["DataFusion"].append(measured(ask))
            runs["DuckDB"].append(measured([sys.executable, __file__, "--store", store, "--week",
                                            week, "--duckdb", name, services]))
        if len({rows for of in runs.values() for _, rows, _ in of}) != 1:
            raise SystemExit(f"{name}: engines give other numbers of rows: {runs}")
        median = {of: statistics.median(run[0] for run in runs[of]) for of in runs}
        told = ", ".join(f"{of} {median[of]:.2f} s {max(run[2] for run in runs[of]):.0f} MB"
                         for of in runs)
        what = "the largest service" if services == largest else f"{services} services"
        ratio = median["DataFusion"] / median["DuckDB"]
        print(f"{name} of {what}: {told}: {ratio:.2f}, {runs['DuckDB'][0][1]:,} rows, "
              f"load {load()}", flush=True)


if __name__ == "__main__":
    main()
