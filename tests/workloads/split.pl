# Two functions of the same lines, of which one runs three times as long as the other.
use strict;
use warnings;

sub heavy {
    my ($rounds) = @_;
    my $total = 0;
    for my $number (1 .. $rounds) {
        $total += $number * 3 % 7;
    }
    return $total;
}

sub light {
    my ($rounds) = @_;
    my $total = 0;
    for my $number (1 .. $rounds) {
        $total += $number * 3 % 7;
    }
    return $total;
}

use Time::HiRes 'clock';

my $last = clock() + shift;
my ($heavy, $light) = (0, 0);
while (clock() < $last) {
    my $first = clock();
    heavy(60_000);
    my $between = clock();
    light(20_000);
    $heavy += $between - $first;
    $light += clock() - $between;
}
print qq({"heavy": $heavy, "light": $light}\n);
