<?php
$x = 1;
%function
function NAME($n) {
    global $x;
    $s = 0;
    for ($i = 0; $i < 60; $i++) $s += $i & $n;
    $x = ($x * 1103515245 + 12345) & 0x7fffffff;
    $c = ($x >> 16) % 4;
%call
    if ($c == NUMBER) $s += CALLEE($n + 1);
%end
    return $s + 1;
}
%main
$end = microtime(true) + (float) $argv[1];
while (microtime(true) < $end) f(0);
