// Two functions that the compiler makes machine code of, the first with three times the work. Prints the seconds in each.
"use strict";
function firstOfTwo(n) {
  let sum = 0;
  for (let i = 0; i < n; i++) sum = (sum * 31 + i) | 0;
  return sum;
}
function secondOfTwo(n) {
  let sum = 0;
  for (let i = 0; i < n; i++) sum = (sum * 31 + i) | 0;
  return sum;
}
const seconds = Number(process.argv[2]);
const cpu = () => process.cpuUsage().user / 1e6;
let [first, second, sum] = [0, 0, 0];
const end = cpu() + seconds;
while (cpu() < end) {
  const begin = cpu();
  sum += firstOfTwo(6e6);
  const middle = cpu();
  sum += secondOfTwo(2e6);
  first += middle - begin;
  second += cpu() - middle;
}
console.log(JSON.stringify({ first_s: first, second_s: second, sum, pid: process.pid }));
