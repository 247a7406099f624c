# Functions of Ruby whose share of the time is known: each kind of call runs `leaf`, and prints how
# many nanoseconds each took in all, as JSON. ARGV: seconds.

def now
  Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID, :nanosecond)
end

def leaf(count)
  sum = 0
  count.times_of { |number| sum += number }
  sum
end

class Integer
  # A loop in Ruby with a block, as `times` is in C.
  def times_of
    number = 0
    while number < self
      yield number
      number += 1
    end
  end
end

def recursion(depth, count)
  depth.zero? ? leaf(count) : recursion(depth - 1, count)
end

# Blocks that functions in C call.
def each_one(count)
  [count].each { |it| [it].map { |one| leaf(one) } }
end

class Sorter
  def initialize(count)
    @count = count
  end

  def sort
    [2, 1].sort_by { |it| key(it) }
  end

  def key(number)
    leaf(@count)
    number
  end
end

def thrice(count)
  leaf(3 * count)
end

def once(count)
  leaf(count)
end

def measured(times, name)
  begin_at = now
  yield
  times[name] += now - begin_at
end

def main(seconds)
  times = Hash.new(0)
  sorter = Sorter.new(4000)
  end_at = now + seconds * 1_000_000_000
  while now < end_at
    measured(times, :recursion) { recursion(3, 8000) }
    measured(times, :each_one) { each_one(8000) }
    measured(times, :sort) { sorter.sort }
    measured(times, :thrice) { thrice(4000) }
    measured(times, :once) { once(4000) }
  end
  puts "{#{times.map { |name, time| "\"#{name}\": #{time}" }.join(', ')}}"
end

main(ARGV[0].to_i)
