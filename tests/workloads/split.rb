# Two functions of the same lines, of which one runs three times as long as the other.

def heavy(rounds)
  total = number = 0
  while number < rounds
    total += number * 3 & 7
    number += 1
  end
  total
end

def light(rounds)
  total = number = 0
  while number < rounds
    total += number * 3 & 7
    number += 1
  end
  total
end

def now
  Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
end

last = now + ARGV[0].to_f
times = [0.0, 0.0]
while now < last
  first = now
  heavy(60_000)
  between = now
  light(20_000)
  times[0] += between - first
  times[1] += now - between
end
puts "{\"heavy\": #{times[0]}, \"light\": #{times[1]}}"
