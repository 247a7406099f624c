"""Recursion, a library in C that calls back, regular expressions and threads."""
import json
import re
import threading


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def work():
    while True:
        fib(18)
        rows = [{"a": i, "b": [1, 2, 3] * 10} for i in range(500)]
        text = json.dumps(sorted(rows, key=lambda row: -row["a"]), default=str)
        re.sub(r"(\d+)", lambda match: match.group(1) * 2, text)


threading.Thread(target=work, daemon=True).start()
work()
