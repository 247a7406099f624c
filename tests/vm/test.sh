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
	status
	dcpictl --control $socket status | sed 's/^/    /' # for who reads the log
	dcpictl --control $socket quit >/said 2>&1 || fail "quit, $1: $(cat /said)"
	wait $daemon
	code=$?
	check "quit, $1" "exit code $code" "$code == 0"
	missed=$(awk -F '\t' '$1 ~ /^\.cpus\.[0-9]+\.missed\./ { split($1, part, "."); print "CPU " part[3] ": " $2, part[5] }' /status)
	[ -z "$missed" ] || differs "missed, $1:" $missed
	grep -E ' (WARN|ERROR) ' /log | while read -r line; do differs "log, $1: $line"; done
}

# Hooks that the kernel refused cost accuracy, silently. Debian's 5.10 for amd64 has neither tracepoint nor this probe.
follows_mappings() {
	if ! grep -q 'may stay unresolved here' /log; then
		ok "mappings are followed: no refusal in the log"
	elif [ "$(uname -m)" = x86_64 ] && uname -r | grep -q '^5\.10\.'; then
		differs "log: $(grep 'may stay unresolved here' /log)"
	else
		fail "mappings are followed: $(grep 'may stay unresolved here' /log)"
	fi
}

# refused EVENT [WHY]: one line that names it, and exit code 2.
refused() {
	dcpid --db /refused --control $socket --event "$1" >/said 2>&1
	code=$? lines=$(wc -l </said)
	if [ $code = 2 ] && [ "$lines" = 1 ] && grep -q "^dcpid: event '$1'${2:- cannot be sampled}" /said; then
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
		"$three + $one > 500 && (d = $three / ($three + $one) - $truth) * d < 16 * $truth * (1 - $truth) / ($three + $one)"
}

kernel_names() {
	kernel=$(samples "$1" '[kernel]')
	nameless=$(rows "$1" | awk '$1 == "[kernel]" && $2 ~ /^0x|^$/ { sum += $3 } END { print sum + 0 }')
	top=$(rows "$1" | awk '$1 == "[kernel]" && ++n <= 4 { print $2, $3 }')
	check "kernel procedures by $1" "$kernel samples, $nameless without a name, most in $(echo $top)" \
		"$kernel > 50 && $nameless == 0"
	total=$(of prof .events.0.total) idle=$(of prof .events.0.idle)
	waiting=$(rows "$1" | awk '$1 == "[kernel]" && $2 ~ /idle|halt|wfi|mwait/ { sum += $3 } END { print sum + 0 }')
	check "idle by $1" "$idle of $total, $waiting more in procedures of the kernel named so" \
		"$idle > 0.05 * $total && $waiting < 0.02 * $total"
}

# exact EVENT NUMBER TOLERANCE: samples times period against counters of the program's user mode and of all that it did. What runs with
# interrupts disabled on the program's behalf is seen where they are enabled again, mostly in its user mode, so the truth lies between
# the two. Samples that the kernel kept from us are owed, if dcpid says so.
exact() {
	user=$(awk -v event="$1" '$1 == event { print $2 }' /truth) all=$(awk -v event="$1" '$1 == event { print $3 }' /truth)
	period=$(of prof ".events.$2.period") count=$(samples "$1" two_functions)
	status
	missed=$(awk -F '\t' '$1 ~ /^\.cpus\.[0-9]+\.missed\./ { sum += $2 } END { print sum + 0 }' /status)
	check "counter of $1 / period" \
		"$count samples x $period = $((count * period)), $missed missed; counters: $user in user mode, $all in all" \
		"($count + $missed) * $period > (1 - $3) * $user && $count * $period < (1 + $3) * $all"
}

# rates N...: of the report's events, occurrences, scaled, in each ns in which they should have counted: their mean, by how much of it the
# farthest differs, and the sum of the parts of the time in which each counted.
rates() {
	awk -F '\t' -v events="$*" '
		BEGIN { n = split(events, list, " ") }
		index($1, ".events.") == 1 { field[$1] = $2 }
		END {
			for (i = 1; i <= n; i++) {
				event = ".events." list[i] "."
				rate[i] = field[event "count.value"] / field[event "enabled_ns"]
				mean += rate[i] / n
				parts += field[event "running_ns"] / field[event "enabled_ns"]
			}
			for (i = 1; i <= n; i++) {
				d = rate[i] / mean - 1
				if (d < 0) d = -d
				if (d > worst) worst = d
			}
			printf "%.5f %.4f %.4f", mean, worst, parts
		}' /prof
}

# More events than the CPU has counters (the emulated one: 6, and one that counts cycles only): the kernel lets them take turns. Four are cycles
# in other words, and five are instructions: scaled, those of a kind are alike. The emulator makes 1 cycle in each ns and 1 instruction in each
# 4; while an overflow is handled arm64's counters stand still (armv8pmu_handle_irq), which are 5 % here.
nine_events() {
	start /nine --drain-interval 200ms --event cycles:1000000 --event instructions:1000003 --event r11:1000000 --event r08:1000003 \
		--event "$pmu/event=0x11/:1000000" --event "$pmu/event=0x08/:1000003" --event "$pmu/cpu_cycles/:1000000" \
		--event "$pmu/inst_retired,period=1000003/" --event "$pmu/config=0x8/:1000003" || return
	workload two_functions $((2 * SECONDS_OF_CPU))
	flush "nine events"
	report "nine events"
	set -- $(rates 0 1 2 3 4 5 6 7 8)
	check "nine events share seven counters" "they counted $3 times the time in sum" "$3 > 6.9 && $3 < 7.01"
	set -- $(rates 0 2 4 6)
	check "four spellings of cycles" "$1 per ns, farthest off by $2, counted $3 of 4" "$2 < 0.05 && $1 > 0.88 && $1 < 1.02"
	set -- $(rates 1 3 5 7 8)
	check "five of instructions" "$1 per ns, farthest off by $2, counted $3 of 5" "$2 < 0.05 && $1 > 0.21 && $1 < 0.255"
	quit "nine events"
}

# Two that take turns by our own doing, beside one that always counts.
turns() {
	start /turns --drain-interval 200ms --mux cycles:1000000,instructions:1000003 --event "$pmu/cpu_cycles/:1000000" || return
	workload two_functions $((2 * SECONDS_OF_CPU))
	flush "turns"
	report "turns"
	set -- $(rates 0) $(rates 1) $(rates 2)
	check "one of a group counts at a time" "$6 and $9 of the time, $3 beside" "$6 + $9 > 0.99 && $6 + $9 < 1.001 && $3 > 0.999"
	check "turns, cycles" "$4 per ns, $1 by the event that always counts" "$4 / $1 > 0.95 && $4 / $1 < 1.05"
	check "turns, instructions" "$7 per ns, a quarter of $1" "4 * $7 / $1 > 0.92 && 4 * $7 / $1 < 1.08"
	quit "turns"
}

# An event that happens less often than tables are drained is sampled all the same.
rare() {
	start /rare --event "$default:2500000000" --drain-interval 1s || return
	sleep 21
	dcpictl --control $socket flush >/said 2>&1 || fail "flush, rare: $(cat /said)"
	status
	taken=$(of status .samples.taken)
	check "rare event" "$taken samples of 2 CPUs in 21 s, one every 2.5 s" "$taken >= 12 && $taken <= 18"
	quit "rare"
}

# SpeedShop's experiments: the profiles at two primes of a counter agree.
agrees() {
	TMPDIR=/ dcpi record --experiment "$1" --agree -o "/agree.$1" -- two_functions $((2 * SECONDS_OF_CPU)) >/dev/null 2>/said
	code=$?
	if [ $code = 0 ] && grep -q "$1 and f$1 agree" /said; then
		ok "two primes: $(grep agree /said)"
	else
		fail "two primes of $1: exit code $code: $(tail -n 4 /said | tr '\n' ' ')"
	fi
}

# Totals of a command.
totals() {
	dcpi count -r 2 -e "$1" --format json --to /count.json -- two_functions $SECONDS_OF_CPU >/dev/null 2>/said || fail "dcpi count: $(cat /said)"
	awk -f /json.awk /count.json >/count || fail "dcpi count: not JSON"
}

# calc PROCEDURE: executions of a procedure of the program with branches.
calc() {
	dcpi calc --db "$db" --format json /bin/branched "$1" >/calc.json 2>/said || fail "calc $1: $(cat /said)"
	awk -f /json.awk /calc.json >/calc || fail "calc $1: not JSON"
}

# observed: of the edges out of the block with the most observed ones on both sides, the larger part.
observed() {
	awk -F '\t' '
		{ split($1, part, ".") }
		part[2] != "edges" { next }
		part[4] == "from" { from = $2 }
		part[4] == "observed" { sum[from] += $2; if (!(from in least) || $2 < least[from]) least[from] = $2 }
		END { for (from in sum) if (least[from] > best && sum[from] > least[from]) { best = least[from]; all = sum[from] }
			print all ? 1 - best / all : 0 }' /calc
}

# Registers at samples, interpreted: where a branch goes, how many rounds a loop makes, and how long one takes.
branches() {
	start /branches --overhead-budget off --edges 1000 || return
	workload branched $((2 * SECONDS_OF_CPU))
	flush "branches"
	for name in share rounds round_ns; do
		eval "$name=$(grep '^{' /truth | awk -f /json.awk | awk -v name=".$name" '$1 == name { print $2 }')"
	done
	snapshots=$(of status .edges.taken) edges=$(of status .edges.edges)
	# An emulated processor has not the time to interpret all snapshots.
	fruitful=$(of status .edges.fruitful)
	check "snapshots give edges" "$edges edges of $fruitful snapshots, of $snapshots taken" \
		"$fruitful > 500 && $edges > 5 * $fruitful"
	calc sided
	told=$(observed)
	check "a branch that memory decides" "goes one way in $told of its executions, the program says $share" \
		"$told > $share - 0.03 && $told < $share + 0.03"
	calc always
	told=$(awk -F '\t' '$1 ~ /^\.loops\.[0-9]+\.test\.rounds$/ { print $2; exit }' /calc)
	check "rounds of a loop" "$told, the program says $rounds" "${told:-0} / $rounds > 0.87 && ${told:-0} / $rounds < 1.15"
	low=$(awk -F '\t' '$1 ~ /^\.loops\.[0-9]+\.round_ns\.low$/ { print $2; exit }' /calc)
	high=$(awk -F '\t' '$1 ~ /^\.loops\.[0-9]+\.round_ns\.high$/ { print $2; exit }' /calc)
	# An emulated interrupt takes several times what dcpid deducts for one, and the guest's clock has it.
	check "time of a round" "$low to $high ns, the program says $round_ns" \
		"${low:-0} > 0 && $round_ns > 0.55 * ${low:-0} && $round_ns < 1.15 * ${high:-0}"
	quit "branches"
}

echo "GUEST kernel $(uname -r) $(uname -m)"
case $(uname -m) in
x86_64) default=cpu-clock missing=cycles run=two_functions ;;
*) default=cycles missing=cache-misses run="counted cycles /bin/two_functions" ;;
esac

if start /db; then
	follows_mappings
	workload $run $SECONDS_OF_CPU
	status
	note=$(of status .events.0.note)
	check "default event" "$(of status .events.0.name), note: $note" "\"$(of status .events.0.name)\" == \"$default\""
	differs "$(of status .events.0.name) every $(of status .events.0.period) $(of status .events.0.unit)"
	case $default:$note in
	cycles:null | cpu-clock:"no hardware counters"*) ok "note of the default event" ;;
	*) fail "note of the default event: $note" ;;
	esac
	ledger "running"
	flush "after the workload"
	report "default"
	three_to_one $default
	kernel_names $default
	if [ $default = cpu-clock ]; then
		cpu_s=$(grep '^{' /truth | awk -f /json.awk | awk '$1 == ".cpu_s" { print $2 }')
		part=$(awk "BEGIN { printf \"%.3f\", $(samples $default two_functions) * $(of prof .events.0.period) / $cpu_s / 1e9 }")
		check "samples x period / CPU time" "$part" "$part > 0.9 && $part < 1.05"
	else
		exact cycles 0 0.05 # few drains, few periods
	fi
	quit "default"
fi

refused $missing
refused nosuch/event=1/ ": this machine has no PMU 'nosuch'; it has "
rare
branches

if [ $default = cycles ]; then
	# Periods vary by 3 % and are drawn at each drain: many drains make their mean exact.
	if start /db2 --event cycles:600000 --event instructions:1000003 --drain-interval 100ms; then
		workload counted cycles /bin/two_functions $((2 * SECONDS_OF_CPU))
		flush "two events"
		report "two events"
		three_to_one cycles
		exact cycles 0 0.01
		# The emulator's clock makes it so: 4 cycles of 1 ns for each instruction of 4 ns.
		cycles=$(of prof .events.0.total) instructions=$(of prof .events.1.total)
		part=$(awk "BEGIN { printf \"%.4f\", $instructions * 1000003 * 4 / ($cycles * 600000) }")
		check "instructions against cycles" "$instructions and $cycles samples, $part of what the emulator did" \
			"$part > 0.98 && $part < 1.02"
		quit "two events"
	fi
	pmu=$(ls /sys/bus/event_source/devices | grep -m 1 '^armv8')
	nine_events
	turns
	agrees cy_hwc
	totals cycles,instructions
	part=$(awk "BEGIN { printf \"%.4f\", $(of count .rows.1.value) * 4 / $(of count .rows.0.value) }")
	check "dcpi count: instructions against cycles" "$(of count .rows.1.value) and $(of count .rows.0.value), $part of what the emulator did" \
		"$part > 0.98 && $part < 1.02"
elif start /db2 --event cpu-clock@1000; then
	workload two_functions $SECONDS_OF_CPU
	flush "cpu-clock@1000"
	report "cpu-clock@1000"
	three_to_one cpu-clock
	quit "cpu-clock@1000"
	totals task-clock
	clock=$(of count .rows.0.value) used=$(awk "BEGIN { print ($(of count .user_s) + $(of count .system_s)) * 1e9 }")
	check "dcpi count: task-clock" "$clock ns, $used ns by the kernel's accounting" "$clock > 0.95 * $used && $clock < 1.05 * $used"
fi

echo "GUEST-RESULT $failed"
