use strict; use warnings; use Time::HiRes qw(time);
my $x = 1;
%function
sub NAME {
    my ($n) = @_;
    my $s = 0;
    for my $i (0 .. 39) { $s += $i & $n }
    $x = ($x * 1103515245 + 12345) & 0x7fffffff;
    my $c = ($x >> 16) % 4;
%call
    $s += CALLEE($n + 1) if $c == NUMBER;
%end
    return $s + 1;
}
%main
my $end = time() + $ARGV[0];
f(0) while time() < $end;
