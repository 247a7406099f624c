#!/usr/bin/env python3
"""The heaviest questions on facts, DataFusion beside DuckDB: the same files, in turns.

    beside.py --fleet PROGRAM --store DIR [--week WEEK] [--rounds N]

PROGRAM is a release build of dcpi-fleet, DIR a store whose weeks are closed (growth.py leaves
some). Each run is a process of its own that writes CSV; the time of dcpi-fleet is that of the whole
process, and DuckDB's that from the connection on, without Python. Prints the median of the rounds
and the highest peak of memory.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import time

from common import DuckDb, Program, files, load, manifest, peak_mb, statement


def week_before(store, week):
    weeks = sorted(path.name for path in (store / "weeks").iterdir())
    return weeks[weeks.index(week) - 1]


def duckdb(store, week, name, services):
    """Asks DuckDB of each service, and prints seconds and the peak of memory to stderr."""
    tables = [("facts", week, "facts"), ("facts_before", week_before(store, week), "facts"),
              ("pairs", week, "pairs"), ("host_weeks", week, "host_weeks")]
    tables = [(table, files(store, at, of)) for table, at, of in tables]
    begin = time.monotonic()
    engine = DuckDb()
    for table, paths in tables:
        engine.register(table, paths)
    for service in services:
        engine.connection.execute(f"COPY ({statement(name, service)}) TO '/dev/stdout' (HEADER)")
    print(f"{time.monotonic() - begin:.3f} {peak_mb():.0f}", file=sys.stderr)


def duckdb_run(store, week, name, services):
    command = [sys.executable, __file__, "--store", store, "--week", week, "--duckdb", name]
    ran = subprocess.run([*command, *map(str, services)], check=True, text=True,
                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    seconds, peak = ran.stderr.split()[-2:]
    return float(seconds), float(peak)


def datafusion_run(program, week, name, services):
    runs = [program.measured("sql", "--week", week, "--", statement(name, of)) for of in services]
    return sum(run[0] for run in runs), max(run[2] for run in runs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fleet", help="dcpi-fleet")
    parser.add_argument("--store", type=pathlib.Path, required=True)
    parser.add_argument("--week", default="2026-W41")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--duckdb", nargs="+", help="only this statement, of these services")
    arguments = parser.parse_args()
    store, week = arguments.store.resolve(), arguments.week
    if arguments.duckdb:
        duckdb(store, week, *arguments.duckdb[:1], arguments.duckdb[1:])
        return
    facts = [of for of in manifest(store, week)["files"] if of["table"] == "facts"]
    facts.sort(key=lambda of: -of["rows"])
    services = [of["service"] for of in facts]
    print(f"{sum(of['rows'] for of in facts):,} facts a week, load {load()}")
    program = Program(arguments.fleet, store)
    for name, of, what in [("builds", services[:1], "the largest service"),
                           ("movers", services[:1], "the largest service"),
                           ("heads", [0], "all services at once"),
                           ("builds", services, "all services in turn"),
                           ("movers", services, "all services in turn")]:
        runs = {"DataFusion": [], "DuckDB": []}
        for _ in range(arguments.rounds):
            runs["DataFusion"].append(datafusion_run(program, week, name, of))
            runs["DuckDB"].append(duckdb_run(store, week, name, of))
        median = {of: statistics.median(run[0] for run in runs[of]) for of in runs}
        told = ", ".join(f"{of} {median[of]:.2f} s {max(run[1] for run in runs[of]):.0f} MB"
                         for of in runs)
        ratio = median["DataFusion"] / median["DuckDB"]
        print(f"{name} of {what}: {told}: {ratio:.2f} times, load {load()}", flush=True)


if __name__ == "__main__":
    main()
