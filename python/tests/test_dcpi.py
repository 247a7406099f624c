"""Tests of the package against the program ($DCPI, else dcpi in $PATH) and the example databases.

From this folder's parent: python -m unittest discover -s tests -t .
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import io
import json
import os
import stat
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import dcpi  # noqa: E402

WORDS = ROOT / "docs/example/db"
CALLS = ROOT / "docs/example/calls"
MEASURES = ["event", "share", "share_low", "share_high", "seconds", "samples"]


def has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def may_record() -> bool:
    return os.geteuid() == 0 and os.path.exists("/sys/kernel/btf/vmlinux")


class Fake:
    """A program in the place of dcpi that prints what a test says."""

    def __init__(self, test: unittest.TestCase, out: str = "", err: str = "", code: int = 0):
        folder = tempfile.TemporaryDirectory()
        test.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.path = str(self.folder / "fake dcpi")
        (self.folder / "out").write_text(out, encoding="utf-8")
        (self.folder / "err").write_text(err, encoding="utf-8")
        script = (
            '#!/bin/sh\nhere=${0%/*}\nprintf "%s\\n" "$@" >"$here/arguments"\n'
            f'cat "$here/out"\ncat "$here/err" >&2\nexit {code}\n'
        )
        Path(self.path).write_text(script, encoding="utf-8")
        os.chmod(self.path, stat.S_IRWXU)

    def arguments(self) -> str:
        return (self.folder / "arguments").read_text(encoding="utf-8")


def report(name: str, **fields: object) -> str:
    return json.dumps({"schema": {"name": f"dcpi.{name}", "version": 1}, "problems": [], **fields})


def prof_report(event: str, unit: str, procedure: str = "main") -> str:
    share = {"value": 0.5, "low": 0.4, "high": 0.6}
    row = {"procedure": procedure, "counts": {event: 100}, "share": {event: share}}
    head = {"name": event, "period": 2_000_000, "unit": unit}
    return report("prof", events=[head], sorted_by=event, rows=[row])


class Reports(unittest.TestCase):
    def setUp(self) -> None:
        self.words = dcpi.open(WORDS)
        self.calls = dcpi.open(CALLS)

    def test_prof_has_the_procedures_of_the_example(self) -> None:
        table = self.words.prof()
        self.assertEqual(table.columns[:6], MEASURES)
        self.assertEqual(table.column("procedure"), ["look_up", "checksum", "hash", "main"])
        first = table[0]
        self.assertEqual(first["samples"], 2523)
        self.assertEqual(first["event"], "cpu-clock")
        self.assertAlmostEqual(first["seconds"] or 0, 2523 * 192307e-9)
        self.assertTrue(first["share_low"] < first["share"] < first["share_high"])  # type: ignore
        self.assertEqual(table.raw["schema"]["name"], "dcpi.prof")

    def test_every_row_has_every_column(self) -> None:
        for table in (
            self.words.prof(lines=True),
            self.words.prof(images=True),
            self.words.prof("words", by="pid", since="2026-11-23T22:34:00Z", epoch="all"),
            self.words.why(),
            self.words.timeline(epoch="all", slices=3),
            self.words.diff("-1", "latest"),
            self.words.epochs(),
            self.words.stacks(),
            self.calls.prof(inclusive=True, command="orders"),
            self.calls.callers("sort"),
            self.calls.callees("work", image="orders"),
            self.calls.tree(depth=4),
        ):
            self.assertTrue(len(table) > 0)
            for row in table:
                self.assertEqual(list(row), table.columns)
            self.assertIn(table.columns[0], str(table))

    def test_calls(self) -> None:
        self.assertEqual(set(self.calls.callers("sort").column("procedure")), {"bill", "rank"})
        tree = self.calls.tree()
        self.assertEqual(tree[0]["procedure"], "_start")
        self.assertEqual(tree[1]["parent"], 0)
        self.assertEqual(self.calls.prof(by="command")[0]["command"], "orders")
        by_command = self.calls.prof(by="command")[0]["seconds"]
        self.assertAlmostEqual(by_command or 0, tree[0]["seconds"] or 0, places=3)

    def test_stacks_have_the_samples_of_prof(self) -> None:
        stacks = self.calls.stacks()
        self.assertEqual(sum(stacks.column("samples")), sum(self.calls.prof().column("samples")))
        self.assertAlmostEqual(sum(stacks.column("share")), 1.0)
        self.assertIn(["orders", "_start"], [row["stack"][:2] for row in stacks])

    def test_diff_takes_labels_paths_and_databases(self) -> None:
        labels = self.words.diff("label:before", "label:after", epoch="all")
        self.assertTrue(all(row["significant"] for row in labels))
        self.assertEqual(labels[0]["measure"], "samples")
        self.assertIn("verdict", labels.raw["totals"])
        other = self.words.diff(self.words, CALLS)
        self.assertIn("sort", other.column("procedure"))
        with self.assertRaises(ValueError):
            self.words.diff(Path("a,b"), "latest")

    def test_times_may_be_datetimes(self) -> None:
        start = datetime.datetime(2026, 11, 23, 22, 34, 31, tzinfo=datetime.timezone.utc)
        table = self.words.prof(since=start, until=start + datetime.timedelta(seconds=2))
        self.assertEqual(table.raw["epochs"], ["20261123-223431"])

    def test_errors_have_the_line_of_dcpi(self) -> None:
        with self.assertRaises(dcpi.DcpiError) as caught:
            self.words.callers("look_up")
        self.assertTrue(str(caught.exception).startswith("these epochs have no call stacks"))
        self.assertEqual(caught.exception.exit_code, 2)
        with self.assertRaises(TypeError):
            self.words.prof(procedure="x")  # type: ignore[call-arg]

    def test_names_are_never_options(self) -> None:
        marker = tempfile.mktemp()
        for hostile in ("--help", f"--output={marker}", "a\nb", "; id", "$(id)", ""):
            with self.assertRaises(dcpi.DcpiError):
                self.words.prof(hostile)
            with self.assertRaises(dcpi.DcpiError):
                self.words.stacks(hostile)
        # Behind "--", dcpi why has a command that it would run.
        with self.assertRaisesRegex(dcpi.DcpiError, "must not begin"):
            self.words.why("--", "touch")
        self.assertFalse(os.path.exists(marker))
        with self.assertRaises(ValueError):
            self.words.prof("a\0b")


class Hostile(unittest.TestCase):
    def test_columns_do_not_change_with_the_event(self) -> None:
        clock = dcpi.open(WORDS, Fake(self, prof_report("cpu-clock", "ns")).path).prof()
        cycles = dcpi.open(WORDS, Fake(self, prof_report("cycles", "cycles")).path).prof()
        self.assertEqual(clock.columns, cycles.columns)
        self.assertEqual((clock[0]["event"], cycles[0]["event"]), ("cpu-clock", "cycles"))
        self.assertEqual((clock[0]["seconds"], cycles[0]["seconds"]), (0.2, None))
        self.assertEqual((clock[0]["share"], cycles[0]["share"]), (0.5, 0.5))

    def test_names_with_control_characters_forge_no_rows(self) -> None:
        name = "a\nb\x1b[2J\u2028;c"
        fake = Fake(self, prof_report("cpu-clock", "ns", name))
        table = dcpi.open(WORDS, fake.path).prof("x\ny", label="l\n--all")
        self.assertEqual(table[0]["procedure"], name)
        self.assertEqual(len(str(table).splitlines()), 2)
        self.assertNotIn("\x1b", str(table))
        self.assertIn("--label=l\n--all\n", fake.arguments())

    def test_fields_of_the_json_may_have_the_names_of_arguments(self) -> None:
        raw = json.loads(prof_report("cpu-clock", "ns"))
        raw["rows"][0].update({"kind": "file", "self": 1, "event": "forged", "new_field": [1]})
        table = dcpi.open(WORDS, Fake(self, json.dumps(raw)).path).prof()
        self.assertEqual(list(table[0]), table.columns)
        self.assertEqual(table[0]["event"], "cpu-clock")

    def test_exit_code_1_is_a_report_with_problems(self) -> None:
        raw = json.loads(prof_report("cpu-clock", "ns"))
        raw["problems"] = [{"kind": "damage", "serious": True, "message": "a\nb"}]
        fake = Fake(self, json.dumps(raw), "dcpi: a note\n", 1)
        table = dcpi.open(WORDS, fake.path).prof()
        self.assertEqual(table.problems[0]["kind"], "damage")
        self.assertEqual(str(table).splitlines()[-1], "a\\nb")

    def test_what_is_no_report_is_an_error(self) -> None:
        for out in ("", "hello", "[1]", "{}", "null", '{"schema": 1}', "\x00" * 3, "[" * 100_000):
            with self.assertRaisesRegex(dcpi.DcpiError, "printed no JSON of dcpi"):
                dcpi.open(WORDS, Fake(self, out).path).prof()
        with self.assertRaisesRegex(dcpi.DcpiError, "reads dcpi.prof 1; .* printed dcpi.why 1"):
            dcpi.open(WORDS, Fake(self, report("why")).path).prof()
        with self.assertRaisesRegex(dcpi.DcpiError, ": half a report$"):
            dcpi.open(WORDS, Fake(self, '{"rows": [', "dcpi: half a report\n", 1).path).prof()

    def test_exit_code_2_is_an_error_with_one_line(self) -> None:
        err = "dcpi: a note\ndcpi: no such epoch; see dcpi epochs\n"
        with self.assertRaises(dcpi.DcpiError) as caught:
            dcpi.open(WORDS, Fake(self, "", err, 2).path).prof()
        self.assertEqual(str(caught.exception), "no such epoch; see dcpi epochs")
        with self.assertRaisesRegex(dcpi.DcpiError, "ended with exit code 3"):
            dcpi.open(WORDS, Fake(self, "", "", 3).path).prof()

    def test_a_missing_program_says_how_to_name_it(self) -> None:
        for run in (
            lambda: dcpi.open(WORDS, "/nonexistent/dcpi").prof(),
            lambda: dcpi.time(["true"], ["true"], dcpi="/nonexistent/dcpi"),
            lambda: dcpi.record(dcpi="/nonexistent/dcpi").__enter__(),
        ):
            with self.assertRaisesRegex(dcpi.DcpiError, r"dcpi=PATH, \$DCPI, or \$PATH"):
                run()

    def test_an_empty_table_has_its_columns(self) -> None:
        raw = report("prof", events=[], sorted_by="cycles", rows=[])
        table = dcpi.open(WORDS, Fake(self, raw).path).prof()
        self.assertEqual((len(table), str(table)), (0, "no rows"))
        self.assertEqual(table.columns[:6], MEASURES)
        if has("polars"):
            self.assertEqual(table.to_polars().columns, table.columns)
        if has("pandas"):
            self.assertEqual(list(table.to_pandas().columns), table.columns)


class Frames(unittest.TestCase):
    @unittest.skipUnless(has("pandas"), "pandas is not installed")
    def test_pandas(self) -> None:
        frame = dcpi.open(WORDS).prof().to_pandas()
        self.assertEqual(str(frame.dtypes["samples"]), "Int64")
        self.assertEqual(str(frame.dtypes["pid"]), "Int64")
        self.assertAlmostEqual(frame["share"].sum(), 1.0)

    @unittest.skipUnless(has("polars"), "polars is not installed")
    def test_polars_types_do_not_depend_on_the_rows(self) -> None:
        import polars

        words, calls = dcpi.open(WORDS), dcpi.open(CALLS)
        self.assertEqual(words.prof().to_polars().schema, calls.prof(by="pid").to_polars().schema)
        self.assertEqual(calls.stacks().to_polars().schema["stack"], polars.List(polars.String))

    def test_without_the_package_the_error_names_it(self) -> None:
        table = dcpi.open(WORDS).prof()
        for name in ("pandas", "polars"):
            with mock.patch.dict(sys.modules, {name: None}):
                with self.assertRaisesRegex(dcpi.DcpiError, f"pip install {name}"):
                    getattr(table, f"to_{name}")()


class Times(unittest.TestCase):
    def test_slower_and_words(self) -> None:
        result = dcpi.time("true", ["sleep", "0.02"], runs=3, layouts=3)
        self.assertEqual(result.verdict, "slower")
        self.assertTrue(str(result).startswith("B is"))
        self.assertTrue((result.change or 0) > 0)
        with self.assertRaises(ValueError):
            dcpi.time(["a", "--", "b"], ["c"])
        with self.assertRaisesRegex(dcpi.DcpiError, "nonexistent"):
            dcpi.time(["/nonexistent/a"], ["true"])

    @unittest.skipUnless(has("pytest"), "pytest is not installed")
    def test_pytest_fails_with_the_line_of_dcpi(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "test_times.py").write_text(
                "def test_slower(dcpi_time):\n"
                "    dcpi_time('true', 'sleep 0.02', runs=3, layouts=3)\n"
                "def test_faster(dcpi_time):\n"
                "    result = dcpi_time('sleep 0.02', 'true', runs=3, layouts=3)\n"
                "    assert result.verdict == 'faster'\n"
            )
            path = os.pathsep.join([str(ROOT / "python"), *filter(None, sys.path)])
            done = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", "-p", "dcpi.pytest_plugin", folder],
                env={**os.environ, "PYTHONPATH": path},
                capture_output=True,
                text=True,
                check=False,
            )
        self.assertIn("1 failed, 1 passed", done.stdout, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"B is [\d.]+ % slower than A")


class Recording(unittest.TestCase):
    @unittest.skipUnless(may_record(), "recording needs root and the kernel's types (BTF)")
    def test_a_block_is_recorded_with_this_process_only(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(2):
                with dcpi.record(Path(folder, "db")) as run:
                    end = time.monotonic() + 1.0
                    while time.monotonic() < end:
                        sum(range(10_000))
                self.assertTrue(len(run.prof()) > 0)
                self.assertNotIn("dcpid", run.prof().column("image"))
                self.assertEqual(set(run.prof(by="pid").column("pid")), {os.getpid()})
            with dcpi.record(Path(folder, "other"), seconds=0.5) as short:
                end = time.monotonic() + 2.0
                while time.monotonic() < end:
                    sum(range(10_000))
            self.assertLess(sum(short.prof().column("seconds")), 1.5)
            # Each run is of its own epoch, also after the next one.
            self.assertEqual(len(run.epochs(epoch="all")), 2)
            with self.assertRaises(ValueError):
                run.__enter__()

    def test_an_error_of_dcpi_is_raised_before_the_block(self) -> None:
        fake = Fake(self, "", "dcpi: recording needs root\n", 2)
        with self.assertRaisesRegex(dcpi.DcpiError, "^recording needs root$"):
            with dcpi.record(dcpi=fake.path):
                self.fail("the block must not run without a recording")


class Notebook(unittest.TestCase):
    def test_the_cells_run_in_order(self) -> None:
        path = ROOT / "python/examples/profile.ipynb"
        notebook = json.loads(path.read_text(encoding="utf-8"))
        self.assertEqual(notebook["nbformat"], 4)
        names: dict[str, object] = {}
        before = os.getcwd()
        os.chdir(path.parent)
        self.addCleanup(os.chdir, before)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            for cell in notebook["cells"]:
                if cell["cell_type"] == "code":
                    self.assertEqual(cell["outputs"], [])
                    exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
        self.assertIn("look_up: 72% of the samples, 0.49 s", printed.getvalue())

    def test_the_first_example_of_the_guide_runs(self) -> None:
        page = (ROOT / "docs/src/python.md").read_text(encoding="utf-8")
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(ROOT)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(page.split("```python\n")[1].split("```")[0], {})
        self.assertIn("look_up", printed.getvalue())


if __name__ == "__main__":
    unittest.main()
