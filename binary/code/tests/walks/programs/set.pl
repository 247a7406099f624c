my %c; my @l; srand(3);
for my $r (1..3) {
 for my $i (1..20000) { my $w = "k" . int(rand(3000)); $c{$w}++; push @l, "$w=" . ($i % 97) if $i % 3; }
 my $n = 0; for (@l) { if (/^k(\d+)=(\d*[05])$/) { $n += $1 } elsif (/9/) { $n-- } }
 my @s = sort { $c{$b} <=> $c{$a} || $a cmp $b } keys %c; @l = @l[0..5000];
 my $t = join ',', @s; $t =~ s/k(\d)(\d)/$2$1/g; $n += length $t; print "$n\n";
}
