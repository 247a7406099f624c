let x = 1;
%function
function NAME(n) {
  let s = 0;
  for (let i = 0; i < 200; i++) s += (i & n) * 1.5;
  x = (Math.imul(x, 1103515245) + 12345) & 0x7fffffff;
  const c = (x >> 16) % 4;
%call
  if (c === NUMBER) s += CALLEE(n + 1);
%end
  return s + 1;
}
%main
const end = Date.now() + 1000 * Number(process.argv[2]);
while (Date.now() < end) for (let i = 0; i < 1000; i++) f(0);
