#!/usr/bin/env python3
"""What a fleet costs by its size: seconds, memory, and bytes of a host and week.

    growth.py --fleet PROGRAM --work DIR [--hosts N...]

PROGRAM is a release build of dcpi-fleet; DIR gets a store for each size, 100 MB for 1,000 hosts.
"""

import argparse
import collections
import pathlib
import shutil

from common import Program, load, manifest

WEEKS = ("2026-W40", "2026-W41")


def bytes_by_table(store, hosts):
    of = collections.Counter()
    for entry in manifest(store, WEEKS[1])["files"]:
        of[entry["table"]] += entry["bytes"]
    told = ", ".join(f"{table} {bytes / hosts / 1024:.2f}" for table, bytes in of.most_common())
    return f"{sum(of.values()) / hosts / 1024:.1f} KB a host and week: {told}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fleet", required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--hosts", type=int, nargs="+", default=[200, 2000, 10000])
    arguments = parser.parse_args()
    for hosts in arguments.hosts:
        store = arguments.work.resolve() / f"hosts-{hosts}"
        shutil.rmtree(store, ignore_errors=True)
        store.mkdir(parents=True)
        program = Program(arguments.fleet, store)
        page = arguments.work / f"hosts-{hosts}.html"
        print(f"{hosts:,} hosts", flush=True)
        for name, command in [("simulate, two weeks", ["simulate", "--hosts", hosts]),
                              ("close, the first week", ["close", "--week", WEEKS[0]]),
                              ("close, the second week", ["close", "--week", WEEKS[1]]),
                              ("review, the page", ["review", "--week", WEEKS[1], "-o", page])]:
            seconds, cpu, peak = program.measured(*command)
            print(f"  {name}: {seconds:.2f} s, {cpu:.1f} CPU-s, {peak:.0f} MB, load {load()}",
                  flush=True)
        print(f"  page: {page.stat().st_size / 1e6:.1f} MB")
        print(f"  {bytes_by_table(store, hosts)}", flush=True)


if __name__ == "__main__":
    main()
