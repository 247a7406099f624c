-- What scripts do: text, tables, objects, closures, numbers, garbage. SEED chooses the data, SIZE how much of it there is.
local seed, size = tonumber(SEED), tonumber(SIZE)

local function random(n)
    seed = (seed * 1103515245 + 12345) % 2147483648
    return (seed >> 8) % n + 1
end

local function words(count)
    local some = {}
    for i = 1, count do
        local letters = {}
        for j = 1, 1 + random(8) do letters[j] = string.char(96 + random(random(26))) end
        some[i] = table.concat(letters)
    end
    return some
end

-- Counts words of a text, and what comes most often.
local function count(n)
    local text, counts = table.concat(words(n), " "), {}
    for word in text:gmatch("%a+") do counts[word] = (counts[word] or 0) + 1 end
    local order = {}
    for word in pairs(counts) do order[#order + 1] = word end
    table.sort(order, function(a, b) return counts[a] > counts[b] or counts[a] == counts[b] and a < b end)
    return #order + #text:gsub("a(%a)", "%1a") + #text:upper():reverse()
end

-- Objects with methods that differ by class.
local Shape = {} Shape.__index = Shape
local Circle = setmetatable({}, { __index = Shape }) Circle.__index = Circle
local Box = setmetatable({}, { __index = Shape }) Box.__index = Box
function Shape:scaled(by) return self:area() * by * by end
function Circle:area() return 3 * self.r * self.r end
function Box:area() return self.w * self.h end
local function shapes(n)
    local all, sum = {}, 0
    for i = 1, n do
        local side = random(9)
        all[i] = side < 4 and setmetatable({ r = side }, Circle) or setmetatable({ w = side, h = random(5) }, Box)
    end
    for round = 1, 8 do
        for _, shape in ipairs(all) do sum = sum + shape:scaled(round % 3) end
    end
    return sum
end

-- Trees that are grown and thrown away.
local function tree(depth)
    if depth == 0 then return { value = random(100) } end
    return { left = tree(depth - 1), right = tree(depth - 1), value = depth }
end
local function total(node) return node and node.value + total(node.left) + total(node.right) or 0 end
local function trees(n)
    local sum = 0
    for _ = 1, n do sum = sum + total(tree(3 + random(7))) end
    return sum
end

-- Bodies that attract each other.
local function bodies(n)
    local all = {}
    for i = 1, 5 do all[i] = { x = random(100), y = random(100), u = 0.0, v = 0.0, mass = random(10) / 10 } end
    for _ = 1, n do
        for i, a in ipairs(all) do
            for j = i + 1, #all do
                local b = all[j]
                local dx, dy = a.x - b.x, a.y - b.y
                local force = 0.001 / (dx * dx + dy * dy + 0.01) ^ 1.5
                a.u, a.v = a.u - dx * b.mass * force, a.v - dy * b.mass * force
                b.u, b.v = b.u + dx * a.mass * force, b.v + dy * a.mass * force
            end
        end
        for _, a in ipairs(all) do a.x, a.y = a.x + a.u, a.y + a.v end
    end
    return math.floor(all[1].x)
end

-- A queue kept sorted in an array, and a sieve.
local function heap(n)
    local all, sum = {}, 0
    local function push(value)
        local at = #all + 1
        while at > 1 and all[at // 2] > value do all[at] = all[at // 2] at = at // 2 end
        all[at] = value
    end
    local function pop()
        local top, last = all[1], table.remove(all)
        local at, count = 1, #all
        if count == 0 then return top end
        while 2 * at <= count do
            local child = 2 * at
            if child < count and all[child + 1] < all[child] then child = child + 1 end
            if all[child] >= last then break end
            all[at] = all[child]
            at = child
        end
        all[at] = last
        return top
    end
    for i = 1, n do
        push(random(100000))
        if i % 3 == 0 then sum = sum + pop() end
    end
    return sum
end
local function sieve(n)
    local composite, count = {}, 0
    for i = 2, n do
        if not composite[i] then
            count = count + 1
            for j = i * i, n, i do composite[j] = true end
        end
    end
    return count
end

-- An interpreter in the interpreter: closures of an expression.
local function expression(depth)
    local kind = depth == 0 and random(2) or 2 + random(4)
    if kind == 1 then local value = random(10) return function() return value end end
    if kind == 2 then return function(x) return x end end
    local a, b = expression(depth - 1), expression(depth - 1)
    if kind == 3 then return function(x) return a(x) + b(x) end end
    if kind == 4 then return function(x) return a(x) - b(x) end end
    if kind == 5 then return function(x) return a(x) * b(x) % 1009 end end
    return function(x) if a(x) % 2 == 0 then return b(x) else return a(x) end end
end
local function expressions(n)
    local sum = 0
    for _ = 1, n do
        local f = expression(2 + random(4))
        for x = 1, 20 do sum = (sum + f(x)) % 1000003 end
    end
    return sum
end

-- Records written as text and read again.
local function records(n)
    local lines = {}
    for i = 1, n do lines[i] = string.format("%d;%s;%.2f", i, words(1)[1], random(10000) / 100) end
    local sum, longest = 0.0, 0
    for _, line in ipairs(lines) do
        local number, name, value = line:match("^(%d+);(%a+);([%d.]+)$")
        sum, longest = sum + tonumber(value) + tonumber(number), math.max(longest, #name)
    end
    return math.floor(sum) + longest
end

print(count(12000 * size), shapes(9000 * size), trees(220 * size), bodies(11000 * size), heap(60000 * size),
    sieve(250000 * size), expressions(900 * size), records(13000 * size))
