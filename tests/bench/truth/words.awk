# Words of a text: how often, how long, and lines that are turned round.
{
    for (i = 1; i <= NF; i++) { times[$i]++; length_of[length($i)]++ }
    if (match($0, /[0-9]+ and [0-9a-f]+/)) { split(substr($0, RSTART, RLENGTH), parts, " and "); sum += parts[1] }
    line = $0; gsub(/[aeiou]/, "_", line); changed += line != $0
    if (NR % 16 == 0) { turned = ""; for (i = length($0); i > 0; i--) turned = turned substr($0, i, 1); last = turned }
}
END { n = 0; for (word in times) if (times[word] > 1) n++; print NR, n, sum, changed, last }
