<?php
// Functions of PHP whose share of the time is known: each kind of call runs `leaf`, and prints how
// many microseconds each took in all, as JSON. Argument: seconds.

function now(): int
{
    $usage = getrusage();
    $seconds = $usage['ru_utime.tv_sec'] + $usage['ru_stime.tv_sec'];
    return $seconds * 1000000 + $usage['ru_utime.tv_usec'] + $usage['ru_stime.tv_usec'];
}

function leaf(int $count): int
{
    $sum = 0;
    for ($number = 0; $number < $count; $number++) {
        $sum += $number & 255;
    }
    return $sum;
}

function recursion(int $depth, int $count): int
{
    return $depth == 0 ? leaf($count) : recursion($depth - 1, $count);
}

// Closures that functions in C call.
function mapped(int $count): array
{
    return array_map(fn ($it) => leaf($it), [$count]);
}

class Sorter
{
    public function __construct(private int $count)
    {
    }

    public function sort(): array
    {
        $all = [2, 1];
        usort($all, [$this, 'compare']);
        return $all;
    }

    public function compare(int $one, int $other): int
    {
        leaf($this->count);
        return $one <=> $other;
    }
}

function generator(int $count)
{
    yield leaf($count);
}

function generate(int $count): void
{
    foreach (generator($count) as $_) {
    }
}

function thrice(int $count): int
{
    return leaf(3 * $count);
}

function once(int $count): int
{
    return leaf($count);
}

function main(int $seconds): void
{
    $sorter = new Sorter(60000);
    $kinds = [
        'recursion' => fn () => recursion(3, 60000),
        'mapped' => fn () => mapped(60000),
        'sort' => fn () => $sorter->sort(),
        'generate' => fn () => generate(60000),
        'thrice' => fn () => thrice(60000),
        'once' => fn () => once(60000),
    ];
    $times = array_fill_keys(array_keys($kinds), 0);
    $end = now() + $seconds * 1000000;
    for ($at = now(); $at < $end;) {
        foreach ($kinds as $name => $kind) {
            $kind();
            $after = now();
            $times[$name] += $after - $at;
            $at = $after;
        }
    }
    echo json_encode($times), "\n";
}

main((int) $argv[1]);
