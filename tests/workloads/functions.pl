# Functions of Perl whose share of the time is known: each kind of call runs `leaf`, and prints how
# many microseconds each took in all, as JSON. Argument: seconds.
use strict;
use warnings;
use List::Util qw(first reduce);
use Time::HiRes 'clock';

package Sorter {
    sub new { bless { count => $_[1] }, $_[0] }
    sub compare { my ($self, $one, $other) = @_; main::leaf($self->{count}); $one <=> $other }
    sub sorted { my $self = shift; my @all = sort { $self->compare($a, $b) } 2, 1; @all }
}

package Tied {
    sub TIESCALAR { my ($class, $count) = @_; bless \$count, $class }
    sub FETCH { my $self = shift; main::leaf($$self) }
}

package Sum {
    use overload '+' => sub { my $self = shift; main::leaf($$self) };
}

package main;

sub leaf {
    my ($count) = @_;
    my $sum = 0;
    for my $number (1 .. $count) {
        $sum += $number % 7;
    }
    return $sum;
}

sub recursion {
    my ($depth, $count) = @_;
    if ($depth == 0) {
        my $sum = leaf($count);
        return $sum;
    }
    my $sum = recursion($depth - 1, $count);
    return $sum;
}

sub by_leaf { leaf($main::count); $a <=> $b }

sub sort_by_name {
    local $main::count = shift;
    my @all = sort by_leaf 2, 1;
}

sub methods { Sorter->new(shift)->sorted }

# A function of a library in C calls back, and Perl's `eval` begins another loop there.
sub callbacks {
    my ($count) = @_;
    my $found = first { leaf($count); $_ == 1 } 1, 2;
    my $sum = reduce { my $sum = eval { leaf($count); $a + $b }; $sum } 1, 2;
}

sub tied_scalar {
    tie my $scalar, 'Tied', shift;
    my $value = "$scalar";
}

sub overloaded {
    my $count = shift;
    my $value = bless(\$count, 'Sum') + 1;
}

sub evaluated {
    my ($count) = @_;
    my $block = eval { leaf($count) };
    my $text = eval 'leaf($count); die "thrown\n"';
}

sub expression {
    my ($count) = @_;
    'a' =~ /a(?{ leaf($count) })/;
}

sub closure {
    my ($count) = @_;
    my $function = sub { leaf($count) + 0 };
    my $sum = $function->();
}

sub thrice { leaf(3 * $_[0]); return }

sub once { leaf($_[0]); return }

sub measured {
    my ($times, $name, $function) = @_;
    my $begin = clock();
    $function->();
    $times->{$name} += (clock() - $begin) * 1e6;
}

sub main {
    my ($seconds) = @_;
    my $count = 4000;
    my %kinds = (
        recursion => sub { recursion(3, $count); return },
        sort_by_name => sub { sort_by_name($count); return },
        methods => sub { methods($count); return },
        callbacks => sub { callbacks($count); return },
        tied_scalar => sub { tied_scalar($count); return },
        overloaded => sub { overloaded($count); return },
        evaluated => sub { evaluated($count); return },
        expression => sub { expression($count); return },
        closure => sub { closure($count); return },
        thrice => sub { thrice($count); return },
        once => sub { once($count); return },
    );
    my %times;
    my $last = clock() + $seconds;
    while (clock() < $last) {
        measured(\%times, $_, $kinds{$_}) for sort keys %kinds;
    }
    print '{' . join(', ', map { qq("$_": $times{$_}) } sort keys %times) . "}\n";
}

main(shift);
