// Recursion, closures, regular expressions and JSON.
const fib = (n) => (n < 2 ? n : fib(n - 1) + fib(n - 2));
for (;;) {
  fib(20);
  const rows = Array.from({ length: 500 }, (_, i) => ({ a: i, b: [i, `${i}`] }));
  rows.sort((x, y) => y.a - x.a);
  JSON.stringify(rows).replace(/\d+/g, (digits) => digits + digits);
}
