#!/bin/sh
# A storm of short processes: storm.sh DIRECTORY SECONDS WORKERS
#
# Each worker, in a directory of its own, compiles a program with make -j2, runs it, and loops over programs that end at once. The last line
# of output is the truth: {"processes": 12345}, those that began on this machine meanwhile, others' included.
set -eu
directory=$1 seconds=$2 workers=$3

began() {
    while read -r what number; do
        if [ "$what" = processes ]; then echo "$number"; fi
    done </proc/stat
}

sources() {
    for unit in a b c d; do
        {
            echo '#include <stdio.h>'
            echo '#include <string.h>'
            echo "int work_$unit(int n) { char text[99]; snprintf(text, sizeof text, \"%d\", n); return (int)strlen(text) + n; }"
        } >"$unit.c"
    done
    echo 'int work_a(int), work_b(int), work_c(int), work_d(int);' >main.c
    echo 'int main(void) { return work_a(1) + work_b(2) + work_c(3) + work_d(4) == 14 ? 0 : 1; }' >>main.c
    {
        echo 'all: program'
        echo 'program: main.o a.o b.o c.o d.o; cc -o $@ main.o a.o b.o c.o d.o'
        echo '%.o: %.c; cc -O2 -c $<'
    } >Makefile
}

worker() {
    mkdir "$directory/worker-$1"
    cd "$directory/worker-$1"
    sources
    while [ "$(date +%s)" -lt "$2" ]; do
        rm -f ./*.o program
        make -s -j2 >/dev/null
        ./program
        round=0
        while [ "$round" -lt 40 ]; do
            round=$((round + 1))
            /bin/true
            word=$(echo "round $round" | sed 's/round/turn/' | awk '{ for (i = 0; i < 2000; i++) sum += i; print $1, sum }')
            [ "$word" = "turn 1999000" ]
            ( : ) # a process that runs no program of its own
        done
    done
}

before=$(began)
end=$(($(date +%s) + seconds))
number=0 pids=
while [ "$number" -lt "$workers" ]; do
    worker "$number" "$end" &
    pids="$pids $!"
    number=$((number + 1))
done
for pid in $pids; do
    wait "$pid"
done
echo "{\"processes\": $(($(began) - before))}"
