-- Store a change, such as one tick of a shard, atomically.
--
-- ARGV[1]: a msgpack map, built in commits.py. Returns {written, blocks, steps}: how many were
-- new. written is 0, and nothing is changed, if the clock is no longer the expected one.

local ask = redis.call
local new = cmsgpack.unpack(ARGV[1])
local newest = tonumber(ask('GET', 'hot:newest') or '0')
-- Minutes before this one are rolled up, or just being read for it (durable.py).
local rolled_up_to = tonumber(ask('GET', 'roll_up:begun') or '0')

-- Age is relative to the newest data: older than keep_s before it is refused.
local function admits(what, at)
  if at < newest - new.keep_s or at > new.latest then
    ask('HINCRBY', 'service:counters', 'refused_' .. what, 1)
    return false
  end
  newest = math.max(newest, math.floor(at))
  return true
end

local function ttl(minute)
  return minute + 120 + new.keep_s - newest
end

local function keep(layout)
  local key, ttl_s = 'hot:layout:' .. layout.digest, 2 * new.keep_s + 600
  if ask('EXPIRE', key, ttl_s) == 0 then ask('SET', key, layout.encoded, 'EX', ttl_s) end
end

-- Whether an index (a sorted set: name, newest) has the name or room for it.
local function has_room(index, name, n_wanted)
  if ask('ZSCORE', index, name) or ask('ZCARD', index) < new.most_names then return true end
  ask('HINCRBY', 'service:counters', 'refused_for_room', n_wanted)
  return false
end

local function names(joined)
  local list = {}
  for name in string.gmatch(joined, '[^\n]+') do list[#list + 1] = name end
  return list
end

-- Record that each node, or those whose byte in the mask is 1, reported in a tick.
local function saw_each(nodes, tick, mask)
  for i, node in ipairs(names(nodes)) do
    if mask == '' or string.byte(mask, i) == 1 then ask('ZADD', 'hot:seen', 'GT', tick, node) end
  end
end

-- Usually all of a shard's nodes report: then one field records it for all of them.
local function saw(part, tick)
  local heard = ask('HGET', 'hot:heard', part.shard)
  local before, nodes = string.match(heard or '0\n', '^(%d+)\n(.*)$')
  before = tonumber(before)
  if before >= tick and nodes ~= part.nodes then
    saw_each(part.nodes, tick, '')
  elseif before < tick then
    if nodes ~= part.nodes then saw_each(nodes, before, '') end
    ask('HSET', 'hot:heard', part.shard, tick .. '\n' .. part.nodes)
  end
end

local function remove_silent_nodes()
  local heard = ask('HGETALL', 'hot:heard')
  for i = 1, #heard, 2 do
    if tonumber(string.match(heard[i + 1], '^%d+')) < newest - new.remember_s then
      ask('HDEL', 'hot:heard', heard[i])
    end
  end
  ask('ZREMRANGEBYSCORE', 'hot:seen', '-inf', newest - new.remember_s)
end

-- Whether a list starts with another; both are joined by newlines.
local function begins_with(list, start)
  return start == '' or string.sub(list .. '\n', 1, #start + 1) == start .. '\n'
end

-- Totals are (metric, node) in one flat list; a node that joins starts at zero. Metrics that are
-- not in this part are kept after those that are.
local function totals_so_far(key, part)
  local old = ask('HMGET', key, 'nodes', 'counted', 'sums')
  if old[1] == part.nodes and begins_with(old[2], part.counted) then
    return cmsgpack.unpack(old[3])
  end
  local known, sums, counted = {}, {}, part.counted
  if old[3] then
    local i, held, nodes = 0, cmsgpack.unpack(old[3]), names(old[1])
    for _, metric in ipairs(names(old[2])) do
      if not string.find('\n' .. part.counted .. '\n', '\n' .. metric .. '\n', 1, true) then
        counted = counted == '' and metric or counted .. '\n' .. metric
      end
      for _, node in ipairs(nodes) do
        i = i + 1
        known[metric .. '\n' .. node] = held[i]
      end
    end
  end
  local nodes = names(part.nodes)
  for _, metric in ipairs(names(counted)) do
    for _, node in ipairs(nodes) do
      sums[#sums + 1] = known[metric .. '\n' .. node] or 0
    end
  end
  ask('HSET', key, 'nodes', part.nodes, 'counted', counted)
  return sums
end

-- A second is written once, unless the block replaces one that begins with `over`.
local function put(minute, over, block)
  if over == '' then return ask('HSETNX', minute, block.second, block.blob) == 1 end
  local held = ask('HGET', minute, block.second)
  if not held or string.sub(held, 1, #over) ~= over then return false end
  ask('HSET', minute, block.second, block.blob)
  return true
end

-- The minute is rolled up again once no more comes.
local function is_late(shard, minute)
  ask('ZADD', 'late:minutes', new.now, shard .. '\n' .. minute)
end

local function append_block(part, block)
  local minute = 'hot:' .. part.shard .. ':' .. block.minute
  if not admits('blocks', block.tick) or not put(minute, part.over, block) then return false end
  if block.minute < rolled_up_to then is_late(part.shard, block.minute) end
  if block.reported ~= '' then saw_each(part.nodes, block.tick, block.reported) end
  return true
end

local function block_of(part, i)
  local tick = part.ticks[i]
  return {
    tick = tick,
    minute = tick - tick % 60,
    second = tick % 60,
    blob = part.blobs[i],
    reported = part.reported[i],
    sums = part.sums[i],
  }
end

local function append_blocks(part)
  if not has_room('hot:shards', part.shard, #part.ticks) then return 0 end
  local n, last, last_of_all, minutes, key, sums = 0, 0, 0, {}, 'totals:' .. part.shard, nil
  for i = 1, #part.ticks do
    local block = block_of(part, i)
    if append_block(part, block) then
      sums = sums or totals_so_far(key, part)
      for place, more in ipairs(block.sums) do sums[place] = sums[place] + more end
      n, last, minutes[block.minute] = n + 1, math.max(last, block.tick), true
      if block.reported == '' then last_of_all = math.max(last_of_all, block.tick) end
    end
  end
  if n > 0 then
    for minute in pairs(minutes) do
      ask('EXPIRE', 'hot:' .. part.shard .. ':' .. minute, ttl(minute))
    end
    if last_of_all > 0 then saw(part, last_of_all) end
    keep(part.layout)
    ask('HSET', key, 'sums', cmsgpack.pack(sums))
    ask('EXPIRE', key, new.remember_s)
    if ask('ZADD', 'hot:shards', 'GT', last, part.shard) == 1 then remove_silent_nodes() end
  end
  return n
end

-- A block is removed only if nothing else was stored in its second.
local function remove_blocks(part)
  for i = 1, #part.ticks do
    local block = block_of(part, i)
    local minute = 'hot:' .. part.shard .. ':' .. block.minute
    if ask('HGET', minute, block.second) == block.blob then
      ask('HDEL', minute, block.second)
      if block.minute < rolled_up_to then is_late(part.shard, block.minute) end
    end
  end
end

-- Replace a step in one minute; a step that ended in another minute moves there.
local function replace_step(run, minute, row)
  local key, number = 'steps:' .. run .. ':' .. minute, string.sub(row.record, 9, 16)
  for i, record in ipairs(ask('LRANGE', key, 0, -1)) do
    if string.sub(record, 9, 16) == number then
      if minute == row.minute then
        ask('LSET', key, i - 1, row.record)
      else
        local right = 'steps:' .. run .. ':' .. row.minute
        ask('LREM', key, 1, record)
        ask('RPUSH', right, row.record)
        ask('EXPIRE', right, ttl(row.minute))
      end
      return true
    end
  end
  return false
end

-- Replace a stored step after better reports of its workers: more of them, or better placed ones.
local function amend_step(run, row)
  -- Who keeps a run's steps reads them again (Reader.recent_steps).
  local amended = 'steps:' .. run .. ':amended'
  ask('INCR', amended)
  ask('EXPIRE', amended, new.remember_s)
  for away = 0, new.keep_s, 60 do
    if replace_step(run, row.minute - away, row) then return end
    if away > 0 and replace_step(run, row.minute + away, row) then return end
  end
end

-- A bit per step number marks stored steps, so that each counts once.
local function append_step(run, row, amends)
  local minute = 'steps:' .. run .. ':' .. row.minute
  local held = 'steps:' .. run .. ':held:' .. row.chapter
  if not admits('steps', row.ended_at_s) then return false end
  if ask('GETBIT', held, row.place) == 1 then
    if amends then amend_step(run, row) end
    return false
  end
  if ask('LLEN', minute) >= new.most_steps then
    ask('HINCRBY', 'service:counters', 'refused_for_room', 1)
    return false
  end
  ask('SETBIT', held, row.place, 1)
  ask('EXPIRE', held, new.remember_s)
  ask('RPUSH', minute, row.record)
  ask('EXPIRE', minute, ttl(row.minute))
  if row.minute < rolled_up_to then ask('ZADD', 'late:steps', 'LT', row.minute, run) end
  return true
end

local function append_steps(part)
  if not has_room('hot:runs', part.run, #part.rows) then return 0 end
  local n, tokens, last = 0, 0, 0
  for _, row in ipairs(part.rows) do
    if append_step(part.run, row, part.amends) then
      n, tokens, last = n + 1, tokens + row.tokens, math.max(last, row.ended_at_s)
    end
  end
  if part.amends then keep(part.layout) end
  if n > 0 then
    keep(part.layout)
    ask('HINCRBYFLOAT', 'totals:tokens', part.run, tokens)
    ask('HINCRBY', 'totals:steps', part.run, n)
    ask('ZADD', 'hot:runs', 'GT', last, part.run)
    ask('ZREMRANGEBYSCORE', 'hot:runs', '-inf', newest - new.remember_s)
  end
  return n
end

if new.clock then
  local before = ask('HGET', 'clocks', new.clock.shard) or ''
  if before ~= new.clock.before then return { 0, 0, 0 } end
  ask('HSET', 'clocks', new.clock.shard, new.clock.after)
end
local n_blocks, n_steps = 0, 0
for _, part in ipairs(new.removed or {}) do remove_blocks(part) end
for _, part in ipairs(new.parts or {}) do n_blocks = n_blocks + append_blocks(part) end
if n_blocks > 0 then ask('ZREMRANGEBYSCORE', 'hot:shards', '-inf', newest - new.keep_s) end
if new.steps then n_steps = append_steps(new.steps) end
ask('SET', 'hot:newest', newest, 'EX', new.keep_s + 60)
return { 1, n_blocks, n_steps }
