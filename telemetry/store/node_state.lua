-- Store each node's last report, and count what its processes executed, each report once.
--
-- ARGV[1]: a msgpack map, built in node_state.py. Two keys per node: `last:<node>`, the time of
-- the newest report and the report, and `counts:<node>`, counts by process.

local ask = redis.call
local new = cmsgpack.unpack(ARGV[1])

-- Each key that holds times of reports, and each node's counts, are written once.
local heard, counted = {}, {}

local function is_new(report)
  local key = 'heard:' .. report.node .. ':' .. report.minute
  heard[key] = true
  return ask('SADD', key, report.ms) == 1
end

local function counts_of(node)
  local held = ask('GET', 'counts:' .. node)
  return held and cmsgpack.unpack(held) or { at = 0, of = {} }
end

local function add(to, more)
  for i, n in ipairs(more) do to[i] = to[i] + n end
  return to
end

-- A process that the newer of two reports leaves out has ended: its counts are dropped.
local function count(report)
  local before = counted[report.node] or counts_of(report.node)
  local after = before
  if report.at >= before.at then after = { at = report.at, of = report.counts } end
  for tag, counts in pairs(before.of) do
    if report.counts[tag] then after.of[tag] = add(counts, report.counts[tag]) end
  end
  counted[report.node] = after
end

local function keep(report)
  local key = 'last:' .. report.node
  local held = tonumber(string.match(ask('GETRANGE', key, 0, 31), '^[^\n]*') or '')
  if not held or report.at >= held then
    ask('SET', key, string.format('%.3f', report.at) .. '\n' .. report.line, 'EX', new.remember_s)
  end
end

for _, report in ipairs(new.reports) do
  if is_new(report) then count(report) end
  if report.line ~= '' then keep(report) end
end
for key in pairs(heard) do ask('EXPIRE', key, new.keep_s) end
for node, counts in pairs(counted) do
  ask('SET', 'counts:' .. node, cmsgpack.pack(counts), 'EX', new.remember_s)
end
return 0
