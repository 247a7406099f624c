"""What the checks of this directory share: the program, a store's manifests, other engines."""

import json
import os
import pathlib
import resource
import subprocess
import time

SQL = pathlib.Path(__file__).resolve().parents[2] / "weeks" / "sql"


def statement(name, service=0, procedures=()):
    """The text of a shipped SQL file, as `weeks::statement` makes it."""
    text = (SQL / f"{name}.sql").read_text().replace(":service", str(service))
    return text.replace(":procedures", ", ".join(map(str, procedures)))


class Program:
    """dcpi-fleet with a store."""

    def __init__(self, path, store):
        self.path, self.store = str(path), str(store)

    def command(self, command, *arguments):
        return [self.path, command, "--store", self.store, *map(str, arguments)]

    def run(self, command, *arguments):
        """What it prints."""
        ran = subprocess.run(self.command(command, *arguments), capture_output=True, text=True)
        if ran.returncode != 0:
            raise SystemExit(f"{command} failed: {ran.stderr.strip()}")
        return ran.stdout

    def measured(self, command, *arguments):
        """Seconds, CPU seconds and the peak of memory in MB."""
        begin = time.monotonic()
        pid = os.posix_spawn(self.path, self.command(command, *arguments), os.environ,
                             file_actions=[(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)])
        _, status, usage = os.wait4(pid, 0)
        if status != 0:
            raise SystemExit(f"{command} failed")
        return time.monotonic() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024

    def rows(self, sql, week, engine="local"):
        """The rows of a question."""
        options = ["--week", week, "--engine", engine, "--format", "json"]
        out = self.run("sql", *options, "--", sql)
        return [json.loads(line) for line in out.splitlines()]


def manifest(directory, week):
    """The newest manifest of a week in a directory."""
    return json.loads(max((directory / "weeks" / week).glob("manifest-*")).read_text())


def files(directory, week, table, service=None):
    """The files of a table in a week, of one service where they are kept so."""
    return [
        str(directory / entry["key"])
        for entry in manifest(directory, week)["files"]
        if entry["table"] == table and entry.get("event", "") in ("", "time")
        and (service is None or entry.get("service", service) == service)
    ]


class DuckDb:
    """DuckDB in this process."""

    def __init__(self):
        import duckdb
        self.connection = duckdb.connect()

    def register(self, table, paths):
        self.connection.execute(f"CREATE OR REPLACE VIEW {table} AS "
                                f"SELECT * FROM read_parquet({list(paths)!r})")

    def rows(self, sql):
        answer = self.connection.execute(sql)
        names = [column[0] for column in answer.description]
        return [dict(zip(names, row)) for row in answer.fetchall()]


class Spark:
    """Spark in a process of this one's."""

    def __init__(self):
        from pyspark.sql import SparkSession
        builder = SparkSession.builder.master("local[2]").appName("crosscheck")
        for name, value in [("spark.ui.enabled", "false"), ("spark.driver.memory", "3g"),
                            ("spark.sql.shuffle.partitions", "4"),
                            ("spark.driver.host", "127.0.0.1"),
                            ("spark.driver.bindAddress", "127.0.0.1")]:
            builder = builder.config(name, value)
        self.session = builder.getOrCreate()
        self.session.sparkContext.setLogLevel("ERROR")

    def register(self, table, paths):
        self.session.read.parquet(*paths).createOrReplaceTempView(table)

    def rows(self, sql):
        return [row.asDict() for row in self.session.sql(sql).collect()]


def peak_mb():
    """The peak of this process's memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def load():
    """The machine's load, as `uptime` has it."""
    return "/".join(f"{of:.1f}" for of in os.getloadavg())
