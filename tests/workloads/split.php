<?php
// Two functions of the same lines, of which one runs three times as long as the other.

function heavy($rounds) {
    $total = 0;
    for ($number = 0; $number < $rounds; $number++) {
        $total += $number * 3 & 7;
    }
    return $total;
}

function light($rounds) {
    $total = 0;
    for ($number = 0; $number < $rounds; $number++) {
        $total += $number * 3 & 7;
    }
    return $total;
}

$end = hrtime(true) + (float) $argv[1] * 1e9;
$times = ['heavy' => 0, 'light' => 0];
while (hrtime(true) < $end) {
    $begin = hrtime(true);
    heavy(150000);
    $between = hrtime(true);
    light(50000);
    $times['heavy'] += ($between - $begin) / 1e9;
    $times['light'] += (hrtime(true) - $between) / 1e9;
}
echo json_encode($times), "\n";
