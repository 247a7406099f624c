#!/usr/bin/env python3
"""The shipped SQL files on four engines, over one simulated fleet in an S3 server run here.

    engines.py --fleet PROGRAM [--hosts N] [--work DIR]

PROGRAM is dcpi-fleet built with --features ballista; `cargo xtask fleet engines` does all of it.
Rows of DataFusion, of Ballista (a scheduler and two executors as processes), of DuckDB and of
Spark must be the same: integers and texts exactly, doubles but for the order of additions (1e-9).
DuckDB and Spark read copies of the objects: their S3 readers are no part of their packages. Then a
week is closed on Ballista while an executor is killed, and by two closers at once.
"""

import argparse
import math
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import boto3
import pyarrow.parquet
from botocore.exceptions import ClientError

from common import DuckDb, Program, Spark, files, load, manifest, statement

BUCKET, PREFIX = "fleet", "crosscheck"
WEEKS = ("2026-W40", "2026-W41")
KILL_AFTER_S = 5


def free_port():
    with socket.socket() as of:
        of.bind(("127.0.0.1", 0))
        return of.getsockname()[1]


class S3:
    """An S3 server with a bucket."""

    def __init__(self):
        port = free_port()
        endpoint = f"http://127.0.0.1:{port}"
        os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test",
                          AWS_REGION="us-east-1", AWS_ENDPOINT=endpoint, AWS_ALLOW_HTTP="true")
        server = pathlib.Path(sys.executable).with_name("moto_server")
        self.process = subprocess.Popen([server, "-H", "127.0.0.1", "-p", str(port)],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
            if self.process.poll() is not None:
                raise SystemExit("moto_server did not start")
            time.sleep(0.2)
        self.client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        self.client.create_bucket(Bucket=BUCKET)

    def keys(self):
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        return [of["Key"] for page in pages for of in page.get("Contents", [])]

    def copy(self, directory):
        """The objects, as files; those that are there are not read again."""
        for key in self.keys():
            path = directory / key.removeprefix(f"{PREFIX}/")
            if not path.exists() or not key.endswith(".parquet"):
                path.parent.mkdir(parents=True, exist_ok=True)
                self.client.download_file(BUCKET, key, str(path))
        return directory


class Cluster:
    """A scheduler and two executors."""

    def __init__(self, program):
        self.program = program
        self.scheduler, self.address = self.start("scheduler", "--listen", "127.0.0.1:0")
        self.executors = [self.executor(), self.executor()]

    def start(self, *arguments):
        process = subprocess.Popen([self.program, *arguments], stdout=subprocess.PIPE, text=True)
        line = process.stdout.readline()
        if not line.startswith("listening on "):
            raise SystemExit(f"{arguments[0]} did not start: {line}")
        time.sleep(1)
        return process, line.split()[-1]

    def executor(self):
        return self.start("executor", "--scheduler", self.address, "--tasks", "2")[0]

    @property
    def engine(self):
        return f"df://{self.address}"

    def kill_an_executor(self):
        process = self.executors.pop(0)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self):
        for process in [*self.executors, self.scheduler]:
            process.terminate()
            process.wait()


def same(one, other):
    if isinstance(one, float) or isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-300)
    return one == other


def compare(what, expected, rows):
    """Ends the program where rows differ."""
    if len(expected) != len(rows):
        raise SystemExit(f"{what}: {len(rows)} rows, and DataFusion has {len(expected)}")
    for at, (one, other) in enumerate(zip(expected, rows)):
        unlike = [name for name in one if name not in other or not same(one[name], other[name])]
        if unlike or len(one) != len(other):
            raise SystemExit(f"{what}, row {at}: {unlike}\nDataFusion: {one}\nother:      {other}")


class Check:
    """Asks all engines the same."""

    def __init__(self, program, cluster, copy):
        self.program, self.cluster, self.copy = program, cluster, copy
        self.others = {"DuckDB": DuckDb(), "Spark": Spark()}

    def ask(self, name, sql, week):
        tables = [(table, week, table) for table in ("facts", "host_weeks", "pairs")]
        tables += [("facts_before", WEEKS[0], "facts")] if week == WEEKS[1] else []
        seconds = {}

        def timed(engine, of):
            begin = time.monotonic()
            rows = of()
            seconds[engine] = time.monotonic() - begin
            return rows

        expected = timed("DataFusion", lambda: self.program.rows(sql, week))
        if not expected:
            raise SystemExit(f"{name}: no rows")
        ballista = lambda: self.program.rows(sql, week, self.cluster.engine)
        compare(f"Ballista, {name}", expected, timed("Ballista", ballista))
        for engine, of in self.others.items():
            for table, of_week, key in tables:
                paths = files(self.copy, of_week, key)
                if paths:
                    of.register(table, paths)
            compare(f"{engine}, {name}", expected, timed(engine, lambda: of.rows(sql)))
        told = ", ".join(f"{engine} {of:.1f} s" for engine, of in seconds.items())
        print(f"{name}: {len(expected):,} rows are the same ({told})", flush=True)


def services(copy, pairs):
    """The services with the most facts: all, and those that ran two builds of an image."""
    facts = [of for of in manifest(copy, WEEKS[1])["files"] if of["table"] == "facts"]
    order = [of["service"] for of in sorted(facts, key=lambda of: -of["rows"])]
    several = {row["service"] for row in pairs}
    return order[:3], [of for of in order if of in several][:3]


def closed_tables(copy):
    """The rows of each table that a close makes, sorted."""
    tables = {}
    for name in ("heads", "changes", "host_shares", "rollups", "image_weeks", "skews", "facts"):
        rows = []
        for path in files(copy, WEEKS[1], name):
            rows += pyarrow.parquet.read_table(path).to_pylist()
        keys = [key for key in (rows[0] if rows else {}) if not isinstance(rows[0][key], float)]
        tables[name] = sorted(rows, key=lambda row: [row[key] for key in keys])
    return tables


def close_while_an_executor_dies(program, cluster, s3, copy):
    expected = closed_tables(copy)
    command = program.command("close", "--week", WEEKS[1], "--again", "--engine", cluster.engine)
    begin = time.monotonic()
    closing = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    time.sleep(KILL_AFTER_S)
    if closing.poll() is not None:
        raise SystemExit("the close ended before an executor could be killed; take more hosts")
    cluster.kill_an_executor()
    if closing.wait() != 0:
        raise SystemExit("closing failed after an executor was killed")
    seconds = time.monotonic() - begin
    tables = closed_tables(s3.copy(copy))
    for name, rows in tables.items():
        compare(f"close on Ballista, {name}", expected[name], rows)
    told = ", ".join(f"{name} {len(rows):,}" for name, rows in tables.items())
    print(f"close on Ballista, an executor killed after {KILL_AFTER_S} s of {seconds:.0f}: "
          f"the same rows: {told}", flush=True)


def two_closers(program, s3, copy):
    number = manifest(copy, WEEKS[1])["number"]
    command = program.command("close", "--week", WEEKS[1], "--again")
    closers = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
    if [of.wait() for of in closers] != [0, 0]:
        raise SystemExit("of two closers at once, one failed")
    newest = manifest(s3.copy(copy), WEEKS[1])
    if newest["number"] != number + 2:
        raise SystemExit(f"two closers: manifest {number} became {newest['number']}")
    key = f"{PREFIX}/weeks/{WEEKS[1]}/manifest-{newest['number']:06}"
    before = s3.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    try:
        s3.client.put_object(Bucket=BUCKET, Key=key, Body=b"{}", IfNoneMatch="*")
        raise SystemExit("the server put a manifest in the place of another")
    except ClientError as error:
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
    if s3.client.get_object(Bucket=BUCKET, Key=key)["Body"].read() != before or status != 412:
        raise SystemExit(f"the manifest was not kept: {status}")
    print(f"two closers at once: manifests {number + 1} and {newest['number']}; a second put of "
          f"one is refused with {status}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fleet", required=True)
    parser.add_argument("--hosts", type=int, default=48)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("target/engines"))
    arguments = parser.parse_args()
    shutil.rmtree(arguments.work, ignore_errors=True)
    print(f"load {load()}", flush=True)
    s3 = S3()
    program = Program(arguments.fleet, f"s3://{BUCKET}/{PREFIX}")
    cluster = None
    try:
        program.run("simulate", "--hosts", arguments.hosts)
        cluster = Cluster(arguments.fleet)
        copy = s3.copy(arguments.work.resolve())
        check = Check(program, cluster, copy)
        largest = program.rows("SELECT service FROM facts GROUP BY service "
                               "ORDER BY COUNT(*) DESC, service LIMIT 2", WEEKS[0])
        for row in largest:
            name = f"compact of {row['service']}"
            check.ask(name, statement("compact", row["service"]), WEEKS[0])
        for week in WEEKS:
            program.run("close", "--week", week)
        s3.copy(copy)
        pairs = program.rows("SELECT DISTINCT service FROM pairs WHERE image <> 0", WEEKS[1])
        order, several = services(copy, pairs)
        for name, of in [("movers", order), ("builds", several)]:
            for service in of:
                check.ask(f"{name} of {service}", statement(name, service), WEEKS[1])
        for name in ("rollups", "heads"):
            check.ask(f"{name} of all", statement(name), WEEKS[1])
        most = program.rows("SELECT procedure FROM facts GROUP BY procedure "
                            "ORDER BY SUM(samples) DESC, procedure LIMIT 100", WEEKS[1])
        sql = statement("fellows", procedures=[row["procedure"] for row in most])
        check.ask("fellows", sql, WEEKS[1])
        close_while_an_executor_dies(program, cluster, s3, copy)
        two_closers(program, s3, copy)
    finally:
        if cluster:
            cluster.stop()
        s3.process.terminate()
    print(f"load {load()}")


if __name__ == "__main__":
    main()
