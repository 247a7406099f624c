# Runs our own daemon in a guest and checks what it says. Each line that begins with GUEST is for `cargo xtask vm`:
#
#     GUEST ok WHAT: MEASURED       a check held
#     GUEST FAIL WHAT: WHY          a check did not
#     GUEST differs WHAT            a fact about this guest, for the table
#     GUEST-RESULT N                the end: N checks failed
#
# Times in here are the guest's own; how long the host takes is the host's affair.

SECONDS_OF_CPU=3
socket=/control.sock
failed=0

ok() { echo "GUEST ok $*"; }
fail() { echo "GUEST FAIL $*"; failed=$((failed + 1)); }
differs() { echo "GUEST differs $*"; }

# check WHAT MEASURED EXPRESSION: awk's arithmetic, since sh has none for fractions.
check() {
	if awk "BEGIN { exit !($3) }"; then ok "$1: $2"; else fail "$1: $2; must be: $3"; fi
}

# start DB ARGUMENTS...: a daemon that answers.
start() {
	db=$1
	shift
	dcpid --db "$db" --control $socket "$@" 2>/log &
	daemon=$!
	for attempt in $(seq 300); do
		dcpictl --control $socket status >/dev/null 2>&1 && return 0
		kill -0 $daemon 2>/dev/null || break
		sleep 0.1
	done
	fail "start ($*): dcpid does not answer"
	dcpid --db "$db.trace" --control $socket --log trace "$@" 2>&1 & # why, for the log of this guest
	sleep 2
	kill $! 2>/dev/null
	return 1
}

status() {
	dcpictl --control $socket status --json | awk -f /json.awk >/status
}

# of FILE PATH: the value there.
of() {
	awk -F '\t' -v path="$2" '$1 == path { print $2 }' "/$1"
}

# sum FILE PATH: of all numbers below that path.
sum() {
	awk -F '\t' -v path="$2." 'index($1, path) == 1 { sum += $2 } END { print sum + 0 }' "/$1"
}

# rows EVENT: the report's rows as "image procedure count".
rows() {
	awk -F '\t' -v event="$1" '
		{ split($1, part, ".") }
		part[2] != "rows" { next }
		part[4] == "procedure" { procedure = $2 }
		part[4] == "image" { image = $2 }
		$1 == ".rows." part[3] ".counts." event { print image, procedure, $2 }' /prof
}

# samples EVENT IMAGE [PROCEDURE]
samples() {
	rows "$1" | awk -v image="$2" -v procedure="$3" '
		$1 == image && (procedure == "" || $2 == procedure) { sum += $3 } END { print sum + 0 }'
}

# Every sample is accounted for, and none without a name.
ledger() {
	status
	taken=$(of status .samples.taken) merged=$(of status .samples.merged) pending=$(of status .samples.pending)
	unresolved=$(sum status .samples.unresolved) lost=$(sum status .samples.lost)
	check "ledger closes, $1" "$taken taken, $merged merged, $pending pending, $unresolved unresolved, $lost lost" \
		"$taken > 1000 && $taken == $merged + $pending + $unresolved + $lost"
	check "nothing lost, $1" "$(of status .lost_records) records, $lost samples, $unresolved unresolved" \
		"$(of status .lost_records) == 0 && $lost == 0 && $unresolved <= 0.01 * $taken"
}

flush() {
	dcpictl --control $socket flush >/said 2>&1 || fail "flush, $1: $(cat /said)"
	ledger "$1"
	check "flush leaves little pending, $1" "$pending" "$pending < 0.2 * $taken"
}

report() {
	dcpi prof --db "$db" --format json >/prof.json 2>/said || fail "prof, $1: $(cat /said)"
	awk -f /json.awk /prof.json >/prof || fail "prof, $1: not JSON"
}

quit() {
	dcpictl --control $socket quit >/said 2>&1 || fail "quit, $1: $(cat /said)"
	wait $daemon
	code=$?
	check "quit, $1" "exit code $code" "$code == 0"
	grep -E ' (WARN|ERROR) ' /log | while read -r line; do differs "log, $1: $line"; done
}

# refused EVENT: one line that names it, and exit code 2.
refused() {
	dcpid --db /refused --control $socket --event "$1" >/said 2>&1
	code=$? lines=$(wc -l </said)
	if [ $code = 2 ] && [ "$lines" = 1 ] && grep -q "^dcpid: event '$1' cannot be sampled" /said; then
		ok "$1 refused: $(cat /said)"
	else
		fail "$1 refused: exit code $code, $lines lines: $(cat /said)"
	fi
}

# workload COMMAND...: runs it, keeping what it says, and some work of the kernel's own.
workload() {
	"$@" >/truth || fail "workload $*: failed"
	dd if=/dev/zero of=/dev/null bs=64k count=4096 2>/dev/null
	cat /truth
}

# What the known program did against what was sampled.
three_to_one() {
	event=$1
	three=$(samples "$event" two_functions three_quarters) one=$(samples "$event" two_functions one_quarter)
	truth=$(grep '^{' /truth | awk -f /json.awk | awk '$1 == ".three_quarters" { print $2 }')
	# Four standard deviations of a binomial share; the program's own clock is exact.
	check "three_quarters : one_quarter by $event" "$three : $one, the program says $truth" \
		"$three + $one > 500 && ($three / ($three + $one) - $truth)^2 < 16 * $truth * (1 - $truth) / ($three + $one)"
}

kernel_names() {
	kernel=$(samples "$1" '[kernel]')
	nameless=$(rows "$1" | awk '$1 == "[kernel]" && $2 ~ /^0x|^$/ { sum += $3 } END { print sum + 0 }')
	top=$(rows "$1" | awk '$1 == "[kernel]" { print $2; exit }')
	check "kernel procedures by $1" "$kernel samples, $nameless without a name, most in $top" "$kernel > 50 && $nameless == 0"
}

# counted EVENT: the counter's own count against samples times period.
counted() {
	counter=$(awk -v event="$1" '$1 == event { print $2 }' /truth)
	index=$(awk -F '\t' -v event="$1" '$1 ~ /^\.events\.[0-9]+\.name$/ && $2 == event { split($1, part, "."); print part[3] }' /prof)
	period=$(of prof ".events.$index.period")
	count=$(samples "$1" two_functions)
	part=$(awk "BEGIN { printf \"%.4f\", $count * $period / $counter }")
	check "counter of $1 / period" "$count samples of two_functions x $period = $part of the counter's $counter" \
		"($part - 1)^2 <= $2^2"
}

echo "GUEST kernel $(uname -r) $(uname -m)"
case $(uname -m) in
x86_64) default=cpu-clock missing=cycles run=two_functions ;;
*) default=cycles missing=cache-misses run="counted cycles /bin/two_functions" ;;
esac

if start /db; then
	workload $run $SECONDS_OF_CPU
	status
	note=$(of status .events.0.note)
	check "default event" "$(of status .events.0.name), note: $note" "\"$(of status .events.0.name)\" == \"$default\""
	case $default:$note in
	cycles:null | cpu-clock:"no hardware counters"*) ok "note of the default event" ;;
	*) fail "note of the default event: $note" ;;
	esac
	ledger "running"
	flush "after the workload"
	report "default"
	three_to_one $default
	kernel_names $default
	if [ $default = cycles ]; then
		counted cycles 0.01
	else
		cpu_s=$(grep '^{' /truth | awk -f /json.awk | awk '$1 == ".cpu_s" { print $2 }')
		part=$(awk "BEGIN { printf \"%.3f\", $(samples $default two_functions) * $(of prof .events.0.period) / $cpu_s / 1e9 }")
		check "samples x period / CPU time" "$part" "$part > 0.85 && $part < 1.05"
	fi
	quit "default"
fi

refused $missing

if [ $default = cycles ]; then
	if start /db2 --event cycles --event instructions:1000003; then
		workload counted instructions /bin/two_functions $SECONDS_OF_CPU
		flush "two events"
		report "two events"
		three_to_one cycles
		three_to_one instructions
		counted instructions 0.02
		quit "two events"
	fi
elif start /db2 --event cpu-clock@1000; then
	workload two_functions $SECONDS_OF_CPU
	flush "cpu-clock@1000"
	report "cpu-clock@1000"
	three_to_one cpu-clock
	quit "cpu-clock@1000"
fi

echo "GUEST-RESULT $failed"
