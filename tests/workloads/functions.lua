-- Functions of Lua whose share of the time is known: each kind of call runs `leaf`, and prints how
-- many microseconds each took in all, as JSON. Argument: seconds. For Lua 5.1 to 5.4.

local function now()
  return os.clock() * 1e6
end

local function leaf(count)
  local sum = 0
  for number = 1, count do
    sum = sum + number % 7
  end
  return sum
end

local function recursion(depth, count)
  if depth == 0 then
    local sum = leaf(count)
    return sum
  end
  local sum = recursion(depth - 1, count)
  return sum
end

-- A function in C calls a comparison, which has no name.
local function sort(count)
  local all = { 2, 1 }
  table.sort(all, function(one, other)
    leaf(count)
    return one < other
  end)
end

local function protect(count)
  pcall(function()
    leaf(count)
  end)
end

-- A coroutine runs another one, which is resumed in its middle.
local function body(count)
  leaf(count)
  local inner = coroutine.wrap(function()
    leaf(count)
    coroutine.yield()
    leaf(count)
  end)
  inner()
  inner()
end

local function coroutines(count)
  coroutine.resume(coroutine.create(body), count)
end

local Meta = {}
Meta.__index = function(self, key)
  return leaf(key)
end

-- A function that the loop calls by C, without a function in C between them.
local function metamethod(count)
  local value = setmetatable({}, Meta)[count]
  return value
end

local function thrice(count)
  local sum = leaf(3 * count)
  return sum
end

local function once(count)
  local sum = leaf(count)
  return sum
end

local kinds = { "recursion", "sort", "protect", "coroutines", "metamethod", "thrice", "once" }
local calls = {
  recursion = function(count) recursion(3, count) end,
  sort = function(count) sort(count) end,
  protect = function(count) protect(count) end,
  coroutines = function(count) coroutines(count) end,
  metamethod = function(count) metamethod(count) end,
  thrice = function(count) thrice(count) end,
  once = function(count) once(count) end,
}

local function main(seconds)
  local times = {}
  local at = now()
  local finish = at + seconds * 1e6
  while at < finish do
    for _, kind in ipairs(kinds) do
      local call = calls[kind]
      call(40000)
      local after = now()
      times[kind] = (times[kind] or 0) + after - at
      at = after
    end
  end
  local all = {}
  for _, kind in ipairs(kinds) do
    all[#all + 1] = string.format("%q: %d", kind, math.floor(times[kind]))
  end
  print("{" .. table.concat(all, ", ") .. "}")
end

main(tonumber(arg[1]))
