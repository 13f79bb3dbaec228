-- Keep what nodes reported last, and count what their processes executed, each report once.
--
-- ARGV[1]: a msgpack map, built in last_reports.py. Of a node two keys are kept: `last:<node>`,
-- the newest report with its time before it, and `counts:<node>`, counts by process.

local ask = redis.call
local new = cmsgpack.unpack(ARGV[1])

local function is_new(note)
  local heard = 'heard:' .. note.node .. ':' .. note.minute
  if ask('SADD', heard, note.ms) == 0 then return false end
  ask('EXPIRE', heard, new.keep_s)
  return true
end

local function add(to, more)
  for i, n in ipairs(more) do to[i] = to[i] + n end
  return to
end

-- A process that is gone is forgotten, as soon as a newer report does not speak of it.
local function count(note)
  local key = 'counts:' .. note.node
  local held = ask('GET', key)
  local before = held and cmsgpack.unpack(held) or { at = 0, of = {} }
  local after = before
  if note.at >= before.at then after = { at = note.at, of = note.counts } end
  for tag, counts in pairs(before.of) do
    if note.counts[tag] then after.of[tag] = add(counts, note.counts[tag]) end
  end
  ask('SET', key, cmsgpack.pack(after), 'EX', new.remember_s)
end

local function keep(note)
  local key = 'last:' .. note.node
  local held = tonumber(string.match(ask('GETRANGE', key, 0, 31), '^[^\n]*') or '')
  if not held or note.at >= held then
    ask('SET', key, string.format('%.3f', note.at) .. '\n' .. note.line, 'EX', new.remember_s)
  end
end

for _, note in ipairs(new.notes) do
  if is_new(note) then count(note) end
  if note.line ~= '' then keep(note) end
end
return 0
