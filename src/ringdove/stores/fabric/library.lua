#!lua name=ringdove

-- The queue-type KVS (T2.2): every operation of a store on a stripe is one function, atomic on its
-- master. All keys of a stripe share one hash tag and are passed in KEYS, in this order:
--
--    1 m  string   the stripe: settings that count here, positions, subscriptions (cmsgpack)
--    2 l  stream   the log: id = offset of a block's last message, fields b (block), s (stored ms)
--    3 n  zset     notes on blocks, in lexical order: last offset, then count, base, not before,
--                  stored, bytes
--    4 k  hash     key hashes of blocks of key-ordered queues, by last offset
--    5 p  hash     producers: next sequence, sequence, base and time of the last segment
--    6 i  hash     message ids: offset, when seen
--    7 j  zset     message ids by when they were seen
--    8 h  hash     runs that are leased, waiting or ready, by subscription and first offset
--    9 x  zset     their places, in lexical order
--   10 t  zset     those that wait for a time (lease or delay), by that time
--   11 r  zset     those that are ready, in lexical order
--   12 w  zset     ready runs of groups: subscription, key hash, first offset
--   13 g  hash     groups: runs out, runs waiting, place in line
--   14 q  zset     the line of ready groups: subscription, place, key hash
--   15 d  zset     what is done above the floor: subscription, first offset, end
--   16 c  zset     floors by when they were reached, where done messages are kept
--
-- Numbers inside members are eight bytes, big-endian, so lexical order is numerical order.
-- Subscriptions are numbered; two bytes name one. Tokens are fifteen hexadecimal digits.
-- Refusals are answered as {'!', code, text, number}. Version 1.

local M, LOG, NOTES, HASHES, PRODUCERS, IDS, SEEN = 1, 2, 3, 4, 5, 6, 7
local RUNS, PLACES, TIMED, READY, WAITING, GROUPS, LINE, DONE, MARKS = 8, 9, 10, 11, 12, 13, 14, 15, 16
local IS_READY, IS_LEASED, IS_WAITING = 0, 1, 2
local NO_GROUP = ''
-- Offsets that one epoch may use up.
local SKIP = 2 ^ 32

-- These are there only while a function runs.
local function call(...) return redis.call(...) end
local function pack(value) return cmsgpack.pack(value) end
local function unpack_(text) return cmsgpack.unpack(text) end

local function be(number) return struct.pack('>I8', number) end
local function number_at(text, at) return (struct.unpack('>I8', text, at)) end

local function refuse(code, text, number) return {'!', code, text, tostring(number or 0)} end

local function raise(code, text, number) error({refusal = refuse(code, text, number)}, 0) end

-- The stripe that the running function has loaded.
local current = nil

-- Runs a function; a refusal that was raised becomes its answer, and what was tidied stays so.
local function guarded(work)
  return function(keys, args)
    current = nil
    local ok, answer = pcall(work, keys, args)
    if ok then return answer end
    if type(answer) ~= 'table' or not answer.refusal then error(answer) end
    if current then current:save() end
    return answer.refusal
  end
end

local function now_of(given)
  if given ~= '' then return tonumber(given) end
  local time = call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Stripes --------------------------------------------------------------------------------------

local Stripe = {}
Stripe.__index = Stripe

local function load(keys, version, given_now)
  local raw = call('GET', keys[M])
  if not raw then raise('queue_not_found', 'There is no such stripe; its queue was deleted.') end
  local self = setmetatable(unpack_(raw), Stripe)
  self.keys = keys
  self.now = math.max(now_of(given_now), self.clock)
  self.clock = self.now
  version = tonumber(version)
  if version ~= 0 and version ~= self.version then
    raise('settings_stale', "The queue's settings have version " .. self.version .. ', not '
      .. version .. ': read them again.')
  end
  current = self
  self:check_owner()
  return self
end

-- After a failover the last appends may be gone, and others may come in their place: a new epoch begins, far above all
-- offsets that may have been given out.
function Stripe:check_owner()
  local me = call('CLUSTER', 'MYID')
  if self.owner == me then return end
  if self.owner ~= '' then
    local skipped = (math.floor(self.tail / SKIP) + 1) * SKIP
    self.epoch = self.epoch + 1
    for _, sub in pairs(self.subs) do self:add_done(sub, self.tail, skipped) end
    self.tail = skipped
  end
  self.owner = me
end

function Stripe:save()
  local keys, now = self.keys, self.now
  self.keys, self.now = nil, nil
  call('SET', keys[M], pack(self))
  self.keys, self.now = keys, now
end

function Stripe:announce(channel)
  if channel ~= '' then call('SPUBLISH', channel, '') end
end

-- The note on the block that holds an offset, or on the first one behind it.
function Stripe:note_at(offset)
  local found = call('ZRANGEBYLEX', self.keys[NOTES], '[' .. be(offset), '+', 'LIMIT', 0, 1)[1]
  if not found then return nil end
  local last, count, base, not_before, stored, nbytes = struct.unpack('>I8I8I8I8I8I8', found)
  return {member = found, last = last, stop = last + 1, count = count, base = base,
    not_before = not_before, stored = stored, nbytes = nbytes}
end

function Stripe:subscription(name)
  local sub = self.subs[name]
  if not sub then
    local known = {}
    for other in pairs(self.subs) do known[#known + 1] = other end
    table.sort(known)
    raise('subscription_not_found', "There is no subscription '" .. name .. "' on this queue (it has: "
      .. (#known > 0 and table.concat(known, ', ') or 'none') .. ').')
  end
  return sub
end

local function prefix(sub) return struct.pack('>I2', sub.number) end
local function behind(sub) return struct.pack('>I2', sub.number + 1) end

function Stripe:add_subscription(name, offset)
  local count = 0
  for _ in pairs(self.subs) do count = count + 1 end
  self.numbered = self.numbered + 1
  local floor = math.min(math.max(offset, self.head, self.dropped), self.tail)
  local sub = {number = self.numbered, floor = floor, scan = floor, fence = 0, owner = '',
    held = 0, leased = 0, delayed = 0, above = 0, leases = 0, place = 0, scan_due = 0}
  self.subs[name] = sub
  if self.keep > 0 then self:mark(sub) end
  return sub, count
end

-- Forgets everything that a subscription has in the stripe's keys.
function Stripe:clear_subscription(sub)
  local own, next_ = prefix(sub), behind(sub)
  for _, key in ipairs(call('ZRANGEBYLEX', self.keys[PLACES], '[' .. own, '(' .. next_)) do
    call('HDEL', self.keys[RUNS], key)
    call('ZREM', self.keys[TIMED], key)
  end
  for _, member in ipairs(call('ZRANGEBYLEX', self.keys[LINE], '[' .. own, '(' .. next_)) do
    call('HDEL', self.keys[GROUPS], own .. string.sub(member, 11))
  end
  for _, field in ipairs(call('ZRANGEBYLEX', self.keys[WAITING], '[' .. own, '(' .. next_)) do
    call('HDEL', self.keys[GROUPS], string.sub(field, 1, 10))
  end
  for _, at in ipairs({PLACES, READY, WAITING, LINE, DONE}) do
    call('ZREMRANGEBYLEX', self.keys[at], '[' .. own, '(' .. next_)
  end
end

-- Done -----------------------------------------------------------------------------------------

function Stripe:mark(sub)
  if self.keep > 0 then
    call('ZADD', self.keys[MARKS], 'NX', self.now, prefix(sub) .. be(sub.floor))
  end
end

-- Takes in runs of done offsets that the floor has reached.
function Stripe:settle_floor(sub)
  local own, next_ = prefix(sub), behind(sub)
  while true do
    local member = call('ZRANGEBYLEX', self.keys[DONE], '[' .. own, '(' .. next_, 'LIMIT', 0, 1)[1]
    if not member or number_at(member, 3) > sub.floor then break end
    local lo, hi = number_at(member, 3), number_at(member, 11)
    call('ZREM', self.keys[DONE], member)
    sub.above = sub.above - (hi - lo)
    sub.floor = math.max(sub.floor, hi)
  end
  self:mark(sub)
end

function Stripe:add_done(sub, lo, hi)
  if lo <= sub.floor then
    sub.floor = math.max(sub.floor, hi)
    return self:settle_floor(sub)
  end
  local own, done = prefix(sub), self.keys[DONE]
  sub.above = sub.above + (hi - lo)
  local left = call('ZREVRANGEBYLEX', done, '(' .. own .. be(lo), '[' .. own, 'LIMIT', 0, 1)[1]
  if left and number_at(left, 11) == lo then
    call('ZREM', done, left)
    lo = number_at(left, 3)
  end
  local right = call('ZRANGEBYLEX', done, '[' .. own .. be(hi), '(' .. behind(sub), 'LIMIT', 0, 1)[1]
  if right and number_at(right, 3) == hi then
    call('ZREM', done, right)
    hi = number_at(right, 11)
  end
  call('ZADD', done, 0, own .. be(lo) .. be(hi))
end

-- Passes over offsets that were never stored.
function Stripe:skip(sub, lo, hi)
  if not self:is_done(sub, lo, hi) then self:add_done(sub, lo, hi) end
  sub.scan = hi
end

function Stripe:is_done(sub, lo, hi)
  if hi <= sub.floor then return true end
  lo = math.max(lo, sub.floor)
  local own = prefix(sub)
  local left = call('ZREVRANGEBYLEX', self.keys[DONE], '[' .. own .. be(lo) .. be(2 ^ 53), '[' .. own,
    'LIMIT', 0, 1)[1]
  return left and number_at(left, 3) <= lo and number_at(left, 11) >= hi
end

-- Runs -----------------------------------------------------------------------------------------

local function run_key(sub, lo) return prefix(sub) .. be(lo) end

local function new_run(lo, hi, group)
  return {lo = lo, hi = hi, token = '', till = 0, receives = 0, first = 0, state = IS_READY,
    released = 0, group = group or NO_GROUP}
end

function Stripe:read_run(key)
  local raw = call('HGET', self.keys[RUNS], key)
  if not raw then return nil end
  local hi, token, till, receives, first, state, released, group = unpack(unpack_(raw))
  return {lo = number_at(key, 3), hi = hi, token = token, till = till, receives = receives,
    first = first, state = state, released = released, group = group}
end

function Stripe:write_run(sub, run)
  local key = run_key(sub, run.lo)
  call('HSET', self.keys[RUNS], key, pack({run.hi, run.token, run.till, run.receives, run.first,
    run.state, run.released, run.group}))
  call('ZADD', self.keys[PLACES], 0, key)
  return key
end

function Stripe:erase_run(sub, run)
  local key = run_key(sub, run.lo)
  call('HDEL', self.keys[RUNS], key)
  call('ZREM', self.keys[PLACES], key)
  if run.token ~= '' then sub.leases = sub.leases - 1 end
end

local function account(sub, run, sign)
  local count = sign * (run.hi - run.lo)
  if run.state == IS_LEASED then sub.leased = sub.leased + count end
  if run.state == IS_WAITING then sub.delayed = sub.delayed + count end
end

-- Groups ---------------------------------------------------------------------------------------

function Stripe:read_group(sub, hash)
  local raw = call('HGET', self.keys[GROUPS], prefix(sub) .. hash)
  if not raw then return {hash = hash, out = 0, waiting = 0, place = 0, fresh = true} end
  local out, waiting, place = unpack(unpack_(raw))
  return {hash = hash, out = out, waiting = waiting, place = place}
end

function Stripe:write_group(sub, group)
  local field = prefix(sub) .. group.hash
  if group.out == 0 and group.waiting == 0 then
    call('HDEL', self.keys[GROUPS], field)
  else
    call('HSET', self.keys[GROUPS], field, pack({group.out, group.waiting, group.place}))
  end
end

function Stripe:leave_line(sub, group)
  if group.place > 0 then
    call('ZREM', self.keys[LINE], prefix(sub) .. be(group.place) .. group.hash)
    group.place = 0
  end
end

-- Puts a group in line if it has something waiting and nothing out; writes it in any case.
function Stripe:offer(sub, group)
  if group.out == 0 and group.waiting > 0 and group.place == 0 then
    sub.place = sub.place + 1
    group.place = sub.place
    call('ZADD', self.keys[LINE], 0, prefix(sub) .. be(group.place) .. group.hash)
  elseif group.out > 0 or group.waiting == 0 then
    self:leave_line(sub, group)
  end
  self:write_group(sub, group)
end

function Stripe:wait_in_group(sub, group, run)
  run.state = IS_READY
  self:write_run(sub, run)
  call('ZADD', self.keys[WAITING], 0, prefix(sub) .. group.hash .. be(run.lo))
  group.waiting = group.waiting + 1
end

-- Where runs are -------------------------------------------------------------------------------

-- Makes a run deliverable; it is in no other place.
function Stripe:make_ready(sub, run)
  if self.order == 'key' then
    local group = self:read_group(sub, run.group)
    if run.state ~= IS_READY then group.out = group.out - 1 end
    self:wait_in_group(sub, group, run)
    return self:offer(sub, group)
  end
  run.state = IS_READY
  call('ZADD', self.keys[READY], 0, self:write_run(sub, run))
end

-- Has a run wait until a time; it is in no other place.
function Stripe:make_wait(sub, run, till)
  run.till = till
  account(sub, run, 1)
  call('ZADD', self.keys[TIMED], till, self:write_run(sub, run))
end

-- Takes a run out of wherever it is; it stays written.
function Stripe:take_out(sub, run)
  local key = run_key(sub, run.lo)
  if run.state ~= IS_READY then
    account(sub, run, -1)
    call('ZREM', self.keys[TIMED], key)
  elseif self.order == 'key' then
    call('ZREM', self.keys[WAITING], prefix(sub) .. run.group .. be(run.lo))
  else
    call('ZREM', self.keys[READY], key)
  end
end

-- Removes a run for good.
function Stripe:settle(sub, run)
  self:take_out(sub, run)
  self:erase_run(sub, run)
  if self.order == 'key' then
    local group = self:read_group(sub, run.group)
    if run.state == IS_READY then
      group.waiting = group.waiting - 1
    else
      group.out = group.out - 1
    end
    self:offer(sub, group)
  end
end

-- Cuts a run in two, in place; it keeps the left part, and the right one is answered.
function Stripe:split(sub, run, at)
  local right = new_run(at, run.hi, run.group)
  right.token, right.till, right.receives = run.token, run.till, run.receives
  right.first, right.state, right.released = run.first, run.state, run.released
  run.hi = at
  self:write_run(sub, run)
  local key = self:write_run(sub, right)
  if run.token ~= '' then sub.leases = sub.leases + 1 end
  if self.order == 'key' then
    local group = self:read_group(sub, run.group)
    if run.state == IS_READY then
      call('ZADD', self.keys[WAITING], 0, prefix(sub) .. run.group .. be(at))
      group.waiting = group.waiting + 1
    else
      group.out = group.out + 1
    end
    self:write_group(sub, group)
  elseif run.state == IS_READY then
    call('ZADD', self.keys[READY], 0, key)
  end
  if run.state ~= IS_READY then call('ZADD', self.keys[TIMED], right.till, key) end
  return right
end

-- Makes ready what has come due, for all subscriptions; false when the limit stopped it.
function Stripe:promote(most)
  local due = call('ZRANGEBYSCORE', self.keys[TIMED], '-inf', self.now, 'LIMIT', 0, most)
  local by_number = {}
  for _, sub in pairs(self.subs) do by_number[prefix(sub)] = sub end
  for _, key in ipairs(due) do
    call('ZREM', self.keys[TIMED], key)
    local sub, run = by_number[string.sub(key, 1, 2)], self:read_run(key)
    if sub and run then
      account(sub, run, -1)
      self:make_ready(sub, run)
    end
  end
  return #due < most
end

-- Gives up everything below an offset, whoever may have wanted it.
function Stripe:drop_subscription_below(sub, offset)
  if offset > sub.floor then
    sub.floor = offset
    self:settle_floor(sub)
    sub.scan = math.max(sub.scan, sub.floor)
  end
  local own = prefix(sub)
  while true do
    local key = call('ZRANGEBYLEX', self.keys[PLACES], '[' .. own, '(' .. own .. be(sub.floor),
      'LIMIT', 0, 1)[1]
    if not key then break end
    local run = self:read_run(key)
    if run.hi > sub.floor then self:split(sub, run, sub.floor) end
    self:settle(sub, run)
  end
end

function Stripe:drop_below(offset)
  self.dropped = math.max(self.dropped, offset)
  for _, sub in pairs(self.subs) do self:drop_subscription_below(sub, offset) end
end

-- Room and retention ---------------------------------------------------------------------------

function Stripe:done_floor()
  local floor = nil
  for _, sub in pairs(self.subs) do floor = math.min(floor or sub.floor, sub.floor) end
  return floor or math.max(self.head, self.dropped)
end

function Stripe:expire(most)
  local start = math.max(self.head, self.dropped)
  local at = start
  for _ = 1, most do
    if at >= self.tail then break end
    local note = self:note_at(at)
    if not note or note.stored + self.retention > self.now then break end
    at = note.stop
  end
  if at > start then self:drop_below(at) end
end

-- Below it, a subscription has been done for as long as done messages are kept.
function Stripe:kept_below(sub)
  local own, best = prefix(sub), 0
  local old = call('ZRANGEBYSCORE', self.keys[MARKS], '-inf', self.now - self.keep)
  for _, member in ipairs(old) do
    if string.sub(member, 1, 2) == own then
      best = math.max(best, math.min(number_at(member, 3), sub.floor))
    end
  end
  return best
end

function Stripe:trim_offset()
  local floor = self:done_floor()
  if self.keep == 0 then return floor end
  local kept = floor
  for _, sub in pairs(self.subs) do kept = math.min(kept, self:kept_below(sub)) end
  return math.min(floor, math.max(kept, self.dropped))
end

function Stripe:trim(most)
  local limit, at = self:trim_offset(), nil
  for _ = 1, most do
    local note = self:note_at(0)
    if not note or note.stop > limit then break end
    call('ZREM', self.keys[NOTES], note.member)
    call('HDEL', self.keys[HASHES], be(note.last))
    self.nbytes = self.nbytes - note.nbytes
    at = note.stop
  end
  if at then call('XTRIM', self.keys[LOG], 'MINID', string.format('%.0f', at)) end
  local first = self:note_at(0)
  self.head = first and first.base or self.tail
end

function Stripe:tidy(most)
  self:expire(most)
  self:trim(most)
end

function Stripe:make_room(nbytes)
  local excess = self.nbytes + nbytes - self.bytes_max
  if excess <= 0 then return end
  local limit = self.drops and self.tail or self:done_floor()
  local at = self.head
  while excess > 0 and at < limit do
    local note = self:note_at(at)
    if not note or note.stop > limit then break end
    excess = excess - note.nbytes
    at = note.stop
  end
  if excess > 0 then
    raise('queue_full', string.format('The queue holds %.0f bytes and may hold %.0f; %.0f more do not fit. '
      .. 'Receive some, or raise bytes_max.', self.nbytes, self.bytes_max, nbytes))
  end
  self:drop_below(at)
end

-- Appending ------------------------------------------------------------------------------------

-- Judges a segment by its producer's sequence: nothing to accept it, else an answer.
function Stripe:judge(segment, known)
  local expected = known and known[1] or 0
  local stop = segment.sequence + segment.span
  if known and stop <= expected then
    return {'=', tostring(segment.sequence == known[2] and known[3] or -1)}
  end
  if segment.sequence < expected then
    return refuse('sequence_refused', string.format('The segment covers sequence %.0f to %.0f, but %.0f is next: '
      .. 'send the part that is new under its own sequence.', segment.sequence, stop - 1, expected), expected)
  end
  if segment.sequence > expected and not segment.gaps then
    return refuse('sequence_refused', string.format('The segment starts at sequence %.0f, but %.0f is next: '
      .. 'an earlier segment has not arrived.', segment.sequence, expected)
      .. (known and '' or ' The stripe does not know this producer; start a new one at 0.'), expected)
  end
end

function Stripe:room_for_producer(most)
  if call('HLEN', self.keys[PRODUCERS]) < most then return true end
  local all = call('HGETALL', self.keys[PRODUCERS])
  for at = 1, #all, 2 do
    if unpack_(all[at + 1])[4] <= self.now - self.retention then
      call('HDEL', self.keys[PRODUCERS], all[at])
    end
  end
  return call('HLEN', self.keys[PRODUCERS]) < most
end

function Stripe:forget_ids(most)
  local old = call('ZRANGEBYSCORE', self.keys[SEEN], '-inf', self.now - self.dedup, 'LIMIT', 0, most)
  for _, id in ipairs(old) do
    call('HDEL', self.keys[IDS], id)
    call('ZREM', self.keys[SEEN], id)
  end
end

-- Decides what becomes of each segment, before anything is written.
function Stripe:plan(segments, producers_max)
  local answers, accepted, producers, ids = {}, {}, {}, {}
  local tail, nbytes, admitted = self.tail, 0, 0
  for at, segment in ipairs(segments) do
    local answer
    if segment.producer then
      local known = producers[segment.producer]
      if not known then
        local raw = call('HGET', self.keys[PRODUCERS], segment.producer)
        known = raw and unpack_(raw) or nil
      end
      answer = self:judge(segment, known)
      if not answer and not known then
        if self:room_for_producer(producers_max - admitted) then
          admitted = admitted + 1
        else
          answer = refuse('limit_exceeded', 'The stripe remembers ' .. producers_max
            .. ' producers, the most: use fewer, or wait until old ones are forgotten.')
        end
      end
      if not answer then
        producers[segment.producer] = {segment.sequence + segment.span, segment.sequence, tail, self.now}
      end
    elseif segment.id then
      local known = ids[segment.id]
      if not known then
        local raw = call('HGET', self.keys[IDS], segment.id)
        if raw then
          local offset, seen = unpack(unpack_(raw))
          if seen + self.dedup > self.now then known = offset end
        end
      end
      if known then answer = {'=', tostring(known)} else ids[segment.id] = tail end
    end
    if not answer then
      answer = {'+', string.format('%.0f', tail)}
      segment.base = tail
      accepted[#accepted + 1] = segment
      tail = tail + segment.count
      nbytes = nbytes + segment.nbytes
    end
    answers[at] = answer
  end
  return answers, accepted, producers, ids, tail, nbytes
end

function Stripe:store(segment)
  local last = segment.base + segment.count - 1
  local id = string.format('%.0f-1', last)
  call('XADD', self.keys[LOG], id, 'b', segment.block, 's', string.format('%.0f', self.now))
  call('ZADD', self.keys[NOTES], 0, struct.pack('>I8I8I8I8I8I8', last, segment.count, segment.base,
    segment.not_before, self.now, segment.nbytes))
  if segment.hashes ~= '' then call('HSET', self.keys[HASHES], be(last), segment.hashes) end
end

-- args: now, version, channel, limits (trim, producers, forget), most copies, then nine per segment:
-- producer, sequence, span, gaps, id, count, not before, key hashes, block
local function append(keys, args)
  local self = load(keys, args[2], args[1])
  local trim_max, producers_max, forget_max = tonumber(args[4]), tonumber(args[5]), tonumber(args[6])
  self:tidy(trim_max)
  self:forget_ids(forget_max)
  local segments = {}
  for at = 8, #args, 9 do
    segments[#segments + 1] = {
      producer = args[at] ~= '' and args[at] or nil, sequence = tonumber(args[at + 1]),
      span = tonumber(args[at + 2]), gaps = args[at + 3] == '1',
      id = args[at + 4] ~= '' and args[at + 4] or nil, count = tonumber(args[at + 5]),
      not_before = tonumber(args[at + 6]), hashes = self.order == 'key' and args[at + 7] or '',
      block = args[at + 8], nbytes = #args[at + 8]}
  end
  local answers, accepted, producers, ids, tail, nbytes = self:plan(segments, producers_max)
  self:make_room(nbytes)
  for _, segment in ipairs(accepted) do self:store(segment) end
  for name, state in pairs(producers) do call('HSET', keys[PRODUCERS], name, pack(state)) end
  for id, offset in pairs(ids) do
    call('HSET', keys[IDS], id, pack({offset, self.now}))
    call('ZADD', keys[SEEN], self.now, id)
  end
  self.tail, self.nbytes = tail, self.nbytes + nbytes
  local copies = math.min(self.copies, tonumber(args[7]))
  if copies == 1 then self.stable = tail end
  self:tidy(trim_max)
  self:save()
  if #accepted > 0 then self:announce(args[3]) end
  return {copies, self.when_short, answers, string.format('%.0f', self.tail)}
end

-- args: now, most copies. A change that means nothing, for WAIT to follow: what was appended before has its copies
-- when this has.
local function touch(keys, args)
  local self = load(keys, '0', args[1])
  self:save()
  return {math.min(self.copies, tonumber(args[2])), self.when_short, {}, string.format('%.0f', self.tail)}
end

-- Leasing --------------------------------------------------------------------------------------

local Lease = {}
Lease.__index = Lease

function Lease:strict() return self.stripe.order == 'strict' end

-- Advances the scan of a queue without groups until `want` messages are found.
function Lease:scan(want)
  local stripe, sub = self.stripe, self.sub
  local passed_left = self.scan_max
  sub.scan_due = 0
  while want > 0 do
    sub.scan = math.min(math.max(sub.scan, sub.floor), stripe.stable)
    local start = sub.scan
    if start >= stripe.stable then return true end
    local note = stripe:note_at(start)
    if not note or note.base > start then
      local stop = math.min(note and note.base or stripe.stable, stripe.stable)
      stripe:skip(sub, start, stop)
    elseif note.not_before > stripe.now then
      if stripe.order ~= 'loose' then
        sub.scan_due = note.not_before
        return true
      end
      local stop = math.min(note.stop, stripe.stable)
      local run = new_run(start, stop)
      run.state = IS_WAITING
      stripe:make_wait(sub, run, note.not_before)
      passed_left = passed_left - (stop - start)
      sub.scan = stop
      if passed_left <= 0 then return false end
    else
      local stop = math.min(note.stop, stripe.stable, start + want)
      self.pieces[#self.pieces + 1] = new_run(start, stop)
      want = want - (stop - start)
      sub.scan = stop
    end
  end
  return true
end

-- Takes up to `want` deliverable messages out of the ready ones and the scan, oldest first.
function Lease:gather(want)
  local stripe, sub = self.stripe, self.sub
  local dead_left = self.promote_max
  while want > 0 do
    local key = call('ZRANGEBYLEX', stripe.keys[READY], '[' .. prefix(sub), '(' .. behind(sub), 'LIMIT', 0, 1)[1]
    if not key then break end
    local run = stripe:read_run(key)
    if stripe.receives_max > 0 and run.receives >= stripe.receives_max then
      if self:strict() and #self.pieces > 0 then return true end
      call('ZREM', stripe.keys[READY], key)
      self.dead[#self.dead + 1] = run
      if self:strict() then return true end
      dead_left = dead_left - 1
      if dead_left == 0 then return false end
    else
      if run.hi - run.lo > want then stripe:split(sub, run, run.lo + want) end
      call('ZREM', stripe.keys[READY], key)
      self.pieces[#self.pieces + 1] = run
      want = want - (run.hi - run.lo)
    end
  end
  return self:scan(want)
end

-- Takes messages of the group at the head of the line; answers how many, nil when there is none.
function Lease:take_group(want)
  local stripe, sub = self.stripe, self.sub
  local own = prefix(sub)
  local member = call('ZRANGEBYLEX', stripe.keys[LINE], '[' .. own, '(' .. behind(sub), 'LIMIT', 0, 1)[1]
  if not member then return nil end
  local group = stripe:read_group(sub, string.sub(member, 11))
  local taken, waiting = 0, own .. group.hash
  while taken < want do
    local found = call('ZRANGEBYLEX', stripe.keys[WAITING], '[' .. waiting, '[' .. waiting .. be(2 ^ 53),
      'LIMIT', 0, 1)[1]
    if not found then break end
    local run = stripe:read_run(own .. string.sub(found, 11))
    local is_dead = stripe.receives_max > 0 and run.receives >= stripe.receives_max
    if is_dead and taken > 0 then break end
    if not is_dead and run.hi - run.lo > want - taken then
      stripe:split(sub, run, run.lo + want - taken)
      group.waiting = group.waiting + 1
    end
    call('ZREM', stripe.keys[WAITING], found)
    group.waiting, group.out = group.waiting - 1, group.out + 1
    if is_dead then
      self.dead[#self.dead + 1] = run
      break
    end
    self.pieces[#self.pieces + 1] = run
    taken = taken + run.hi - run.lo
  end
  stripe:offer(sub, group)
  return taken
end

-- Has the next messages join their groups; answers how many they are.
function Lease:sort_ahead(most)
  local stripe, sub = self.stripe, self.sub
  local passed = 0
  sub.scan_due = 0
  while passed < most do
    sub.scan = math.min(math.max(sub.scan, sub.floor), stripe.stable)
    local start = sub.scan
    if start >= stripe.stable then break end
    local note = stripe:note_at(start)
    if not note or note.base > start then
      local stop = math.min(note and note.base or stripe.stable, stripe.stable)
      stripe:skip(sub, start, stop)
      passed = passed + 1
    elseif note.not_before > stripe.now then
      sub.scan_due = note.not_before
      break
    else
      local stop = math.min(note.stop, stripe.stable, start + most - passed)
      local hashes = call('HGET', stripe.keys[HASHES], be(note.last))
      for offset = start, stop - 1 do
        local at = 8 * (offset - note.base)
        local hash = hashes and string.sub(hashes, at + 1, at + 8) or string.rep('\0', 8)
        local group = stripe:read_group(sub, hash)
        stripe:wait_in_group(sub, group, new_run(offset, offset + 1, hash))
        stripe:offer(sub, group)
      end
      sub.scan = stop
      passed = passed + stop - start
    end
  end
  return passed
end

function Lease:gather_groups(want)
  local passed_left, sub = self.scan_max, self.sub
  if want <= self.look_ahead then
    local known = sub.scan - sub.floor - sub.above - sub.leased - sub.delayed
    if known < self.look_ahead then self:sort_ahead(math.min(self.look_ahead - known, self.scan_max)) end
  end
  while true do
    while want > 0 do
      local taken = self:take_group(want)
      if not taken then break end
      want = want - taken
      if #self.dead >= self.promote_max then return false end
    end
    if want <= 0 then return true end
    if passed_left <= 0 then return false end
    local passed = self:sort_ahead(math.min(math.max(self.look_ahead, want), passed_left))
    if passed == 0 then return true end
    passed_left = passed_left - passed
  end
end

-- Keeps `want` messages starting at random among the `spread` oldest; gives the rest back.
function Lease:pick(want, spread)
  local stripe, sub = self.stripe, self.sub
  local total = 0
  for _, run in ipairs(self.pieces) do total = total + run.hi - run.lo end
  local skip = self.random % math.max(1, math.min(spread, total) - want + 1)
  local picked = {}
  local function cut(run, at)
    local right = new_run(at, run.hi, run.group)
    right.token, right.till, right.receives, right.first = run.token, run.till, run.receives, run.first
    if run.token ~= '' then
      sub.leases = sub.leases + 1
      stripe:write_run(sub, right)
    end
    run.hi = at
    if run.token ~= '' then stripe:write_run(sub, run) end
    return right
  end
  for _, run in ipairs(self.pieces) do
    if skip >= run.hi - run.lo then
      skip = skip - (run.hi - run.lo)
      stripe:make_ready(sub, run)
    else
      if skip > 0 then
        local right = cut(run, run.lo + skip)
        stripe:make_ready(sub, run)
        run, skip = right, 0
      end
      if want > 0 then
        if run.hi - run.lo > want then stripe:make_ready(sub, cut(run, run.lo + want)) end
        picked[#picked + 1] = run
        want = want - (run.hi - run.lo)
      else
        stripe:make_ready(sub, run)
      end
    end
  end
  self.pieces = picked
end

-- Neighbours that were never handed out, of one group, become one lease.
function Lease:join()
  local stripe, sub = self.stripe, self.sub
  local found = {}
  for _, run in ipairs(self.pieces) do
    local last = found[#found]
    if last and last.hi == run.lo and last.token == '' and run.token == '' and last.group == run.group then
      if stripe.order == 'key' then
        stripe:erase_run(sub, run)
        local group = stripe:read_group(sub, run.group)
        group.out = group.out - 1
        stripe:write_group(sub, group)
      end
      last.hi = run.hi
    else
      found[#found + 1] = run
    end
  end
  self.pieces = found
end

function Lease:hand_out(run, till)
  local stripe, sub = self.stripe, self.sub
  self.drawn = self.drawn + 1
  if run.token == '' then sub.leases = sub.leases + 1 end
  run.token = string.sub(redis.sha1hex(self.seed .. self.drawn), 1, 15)
  run.receives = run.receives + 1
  if run.first == 0 then run.first = stripe.now end
  run.state, run.released = IS_LEASED, 0
  stripe:make_wait(sub, run, till)
  return {string.format('%.0f', run.lo), string.format('%.0f', run.hi), run.token,
    string.format('%.0f', till), run.receives, string.format('%.0f', run.first)}
end

function Stripe:something_ready(sub)
  local at = self.order == 'key' and LINE or READY
  return #call('ZRANGEBYLEX', self.keys[at], '[' .. prefix(sub), '(' .. behind(sub), 'LIMIT', 0, 1) > 0
end

-- When the next message becomes deliverable by time alone; -1 when none will.
function Stripe:due(sub)
  local locked = self.order == 'strict' and sub.leased + sub.delayed > 0
  local unscanned = sub.scan < self.stable and sub.scan_due == 0
  if not locked and (self:something_ready(sub) or unscanned) then return self.now end
  local due = -1
  if sub.leased + sub.delayed > 0 then
    -- The times of all subscriptions are together: look at them in order until one is ours.
    local own, at = prefix(sub), 0
    while due < 0 do
      local some = call('ZRANGE', self.keys[TIMED], at, at + 99, 'WITHSCORES')
      if #some == 0 then break end
      for place = 1, #some, 2 do
        if string.sub(some[place], 1, 2) == own then
          due = tonumber(some[place + 1])
          break
        end
      end
      at = at + 100
    end
  end
  if sub.scan_due > 0 and not locked and (due < 0 or sub.scan_due < due) then due = sub.scan_due end
  if due < 0 then return -1 end
  return math.max(self.now, due)
end

-- args: now, version, subscription, want, lease ms, spread, seed, random, then limits: promote,
-- scan, leases, trim, look ahead
local function lease(keys, args)
  local stripe = load(keys, args[2], args[1])
  stripe:tidy(tonumber(args[12]))
  local sub = stripe:subscription(args[3])
  if sub.held > stripe.now then
    raise('subscription_busy', "Subscription '" .. args[3] .. "' is being streamed from: receive from another "
      .. 'one, or end the stream.')
  end
  local self = setmetatable({stripe = stripe, sub = sub, seed = args[7], random = tonumber(args[8]), drawn = 0,
    promote_max = tonumber(args[9]), scan_max = tonumber(args[10]), look_ahead = tonumber(args[13]),
    pieces = {}, dead = {}}, Lease)
  local want, spread = tonumber(args[4]), tonumber(args[6])
  local exhausted = stripe:promote(self.promote_max)
  local runs, dead = {}, {}
  if not (self:strict() and sub.leased + sub.delayed > 0) then
    if stripe.order ~= 'loose' then spread = 1 end
    if sub.leases >= tonumber(args[11]) and not stripe:something_ready(sub) then
      raise('limit_exceeded', 'The subscription has ' .. sub.leases .. ' leases outstanding, the most allowed: '
        .. 'acknowledge some first, or receive more messages at once.')
    end
    local gather = stripe.order == 'key' and Lease.gather_groups or Lease.gather
    exhausted = gather(self, math.max(want, spread)) and exhausted
    if spread > 1 then self:pick(want, spread) end
    self:join()
    local till = stripe.now + tonumber(args[5])
    for at, run in ipairs(self.pieces) do runs[at] = self:hand_out(run, till) end
    for at, run in ipairs(self.dead) do dead[at] = self:hand_out(run, till) end
  end
  local due = stripe:due(sub)
  stripe:save()
  local unstable = stripe.tail > stripe.stable and 1 or 0
  return {stripe.epoch, runs, dead, exhausted and 0 or 1, string.format('%.0f', due), unstable}
end

-- Settling -------------------------------------------------------------------------------------

-- The runs within [lo, hi) that a lease holds, cut at the borders.
function Stripe:carve(sub, claim)
  local own = prefix(sub)
  local found = {}
  if claim.lo >= claim.hi then raise('receipt_stale', 'The receipt names no messages.') end
  local left = call('ZREVRANGEBYLEX', self.keys[PLACES], '[' .. own .. be(claim.lo), '[' .. own, 'LIMIT', 0, 1)
  local rest = call('ZRANGEBYLEX', self.keys[PLACES], '(' .. own .. be(claim.lo), '(' .. own .. be(claim.hi))
  for _, keys in ipairs({left, rest}) do
    for _, key in ipairs(keys) do
      local run = self:read_run(key)
      local held = run.token == claim.token or (claim.earlier and run.token ~= '')
      if held and run.hi > claim.lo and run.lo < claim.hi then found[#found + 1] = run end
    end
  end
  if self.order ~= 'loose' then
    for _, run in ipairs(found) do
      if run.state ~= IS_LEASED or run.till <= self.now then
        raise('receipt_stale', "The receipt's lease has expired, which ends it on an ordered queue.")
      end
    end
  end
  for at, run in ipairs(found) do
    if run.lo < claim.lo then
      run = self:split(sub, run, claim.lo)
      found[at] = run
    end
    if run.hi > claim.hi then self:split(sub, run, claim.hi) end
  end
  if #found == 0 then
    raise('receipt_stale', "The receipt's lease has ended: its messages are done or were leased again.")
  end
  return found
end

local acts = {}

function acts.acknowledge(self, sub, claim)
  if claim.hi <= sub.floor then return 0 end
  local ok, runs = pcall(self.carve, self, sub, claim)
  if not ok then
    if type(runs) == 'table' and runs.refusal and self:is_done(sub, claim.lo, claim.hi) then return 0 end
    error(runs, 0)
  end
  local count = 0
  for _, run in ipairs(runs) do
    self:settle(sub, run)
    self:add_done(sub, run.lo, run.hi)
    count = count + run.hi - run.lo
  end
  return count
end

function acts.extend(self, sub, claim, lease_ms)
  local count = 0
  for _, run in ipairs(self:carve(sub, claim)) do
    if run.released == 0 then
      self:take_out(sub, run)
      if self.order == 'key' and run.state == IS_READY then
        local group = self:read_group(sub, run.group)
        group.waiting, group.out = group.waiting - 1, group.out + 1
        self:offer(sub, group)
      end
      run.state = IS_LEASED
      self:make_wait(sub, run, self.now + tonumber(lease_ms))
      count = count + run.hi - run.lo
    end
  end
  if count == 0 then raise('receipt_stale', 'The messages were released; there is no lease to extend.') end
  return count
end

function acts.release(self, sub, claim, delay_ms)
  local count = 0
  for _, run in ipairs(self:carve(sub, claim)) do
    local wait_ms = tonumber(delay_ms)
    if not wait_ms then
      local doublings = math.min(math.max(run.receives - 1, 0), 40)
      wait_ms = math.min(self.backoff * 2 ^ doublings, self.backoff_max)
    end
    self:take_out(sub, run)
    run.state, run.released = IS_WAITING, 1
    self:make_wait(sub, run, self.now + wait_ms)
    count = count + run.hi - run.lo
  end
  return count
end

-- args: now, version, channel, subscription, act, its number or '', trim limit, most copies, then five per
-- claim: epoch, token, lo, hi, earlier
local function settle(keys, args)
  local self = load(keys, args[2], args[1])
  local sub = self:subscription(args[4])
  local act, answers = acts[args[5]], {}
  for at = 9, #args, 5 do
    local claim = {token = args[at + 1], lo = tonumber(args[at + 2]), hi = tonumber(args[at + 3]),
      earlier = args[at + 4] == '1' and self.order == 'loose'}
    local ok, answer = pcall(function()
      if tonumber(args[at]) ~= self.epoch then
        raise('receipt_stale', 'The receipt is from epoch ' .. args[at] .. '; the stripe is in ' .. self.epoch .. '.')
      end
      return act(self, sub, claim, args[6])
    end)
    if ok then
      answers[#answers + 1] = answer
    elseif type(answer) == 'table' and answer.refusal then
      answers[#answers + 1] = answer.refusal
    else
      error(answer)
    end
  end
  self:tidy(tonumber(args[7]))
  self:save()
  self:announce(args[3])
  return {math.min(self.copies, tonumber(args[8])), self.when_short, answers}
end

-- The rest -------------------------------------------------------------------------------------

local function configured(self, args, at)
  self.version, self.order = tonumber(args[at]), args[at + 1]
  self.retention, self.keep, self.dedup = tonumber(args[at + 2]), tonumber(args[at + 3]), tonumber(args[at + 4])
  self.bytes_max, self.drops = tonumber(args[at + 5]), args[at + 6] == '1'
  self.receives_max = tonumber(args[at + 7])
  self.backoff, self.backoff_max = tonumber(args[at + 8]), tonumber(args[at + 9])
  self.copies, self.when_short = tonumber(args[at + 10]), args[at + 11]
end

-- args: now, first subscription, then settings (see configured)
local function create(keys, args)
  if call('EXISTS', keys[M]) == 1 then return 0 end
  local self = setmetatable({epoch = 1, tail = 0, stable = 0, head = 0, dropped = 0, nbytes = 0, clock = 0,
    numbered = 0, subs = {}, owner = call('CLUSTER', 'MYID'), keys = keys, now = now_of(args[1]), keep = 0}, Stripe)
  configured(self, args, 3)
  self:add_subscription(args[2], 0)
  self:save()
  return 1
end

-- args: now, channel, then settings
local function configure(keys, args)
  local self = load(keys, '0', args[1])
  local version, order = tonumber(args[3]), args[4]
  if version < self.version then
    raise('settings_stale', "The queue's settings have version " .. self.version .. ' already, not ' .. version .. '.')
  end
  if order ~= self.order then
    for _, sub in pairs(self.subs) do
      if sub.floor < self.tail then
        raise('settings_refused', "order can change from '" .. self.order .. "' to '" .. order .. "' only while no "
          .. 'message is waiting or leased: drain the queue, or purge it.')
      end
    end
    for _, sub in pairs(self.subs) do self:clear_subscription(sub) end
  end
  local kept = self.keep
  configured(self, args, 3)
  if kept == 0 then
    for _, sub in pairs(self.subs) do self:mark(sub) end
  end
  self:save()
  self:announce(args[2])
  return 1
end

local function delete(keys, args)
  call('UNLINK', unpack(keys))
  if args[1] ~= '' then call('SPUBLISH', args[1], '') end
  return 1
end

-- args: now, channel, name, kind of start, value, most subscriptions
local function subscribe(keys, args)
  local self = load(keys, '0', args[1])
  local name, kind, value = args[3], args[4], tonumber(args[5])
  local sub = self.subs[name]
  if not sub then
    local offset = self.head
    if kind == 'latest' then offset = self.tail elseif kind == 'offset' then offset = value end
    local count
    sub, count = self:add_subscription(name, offset)
    if count >= tonumber(args[6]) then
      raise('limit_exceeded', 'A queue has at most ' .. args[6] .. ' subscriptions.')
    end
    self:save()
    self:announce(args[2])
  end
  return string.format('%.0f', sub.floor)
end

local function unsubscribe(keys, args)
  local self = load(keys, '0', args[1])
  local sub = self.subs[args[2]]
  if sub then
    self:clear_subscription(sub)
    self.subs[args[2]] = nil
    self:save()
  end
  return 1
end

-- args: now, subscription, owner, lease ms, promote limit
local function claim(keys, args)
  local self = load(keys, '0', args[1])
  local sub = self:subscription(args[2])
  if sub.owner ~= args[3] and sub.held > self.now then
    raise('subscription_busy', "Subscription '" .. args[2] .. "' is streamed from by somebody else for at least "
      .. string.format('%.0f', sub.held - self.now) .. ' ms more.')
  end
  while not self:promote(tonumber(args[5])) do end
  if sub.leased > 0 or sub.delayed > 0 or sub.above > 0 then
    self:save()
    return refuse('subscription_busy', string.format("Subscription '%s' is received from: %.0f messages are leased, "
      .. '%.0f wait and %.0f are done out of order. Stream from a subscription of its own.', args[2], sub.leased,
      sub.delayed, sub.above))
  end
  sub.fence = sub.fence + 1
  sub.owner, sub.held = args[3], self.now + tonumber(args[4])
  self:save()
  return {sub.fence, string.format('%.0f', sub.floor)}
end

function Stripe:check_fence(name, fence)
  local sub = self:subscription(name)
  if fence ~= sub.fence or sub.held == 0 then
    raise('fence_stale', "Subscription '" .. name .. "' has fence " .. sub.fence .. '; the reader with fence '
      .. fence .. ' has lost its claim and must begin again.')
  end
  return sub
end

-- args: now, subscription, fence, lease ms
local function hold(keys, args)
  local self = load(keys, '0', args[1])
  local sub = self:check_fence(args[2], tonumber(args[3]))
  local lease_ms = tonumber(args[4])
  if lease_ms > 0 then sub.held = self.now + lease_ms else sub.held, sub.owner = 0, '' end
  self:save()
  return 1
end

-- args: now, subscription, offset, fence, trim limit
local function commit(keys, args)
  local self = load(keys, '0', args[1])
  local fence = tonumber(args[4])
  local sub = fence > 0 and self:check_fence(args[2], fence) or self:subscription(args[2])
  self:drop_subscription_below(sub, math.min(tonumber(args[3]), self.stable))
  self:tidy(tonumber(args[5]))
  self:save()
  return 1
end

function Stripe:waiting(sub)
  return self.stable - sub.floor - sub.above - sub.leased - sub.delayed
end

-- args: now, trim limit
local function purge(keys, args)
  local self = load(keys, '0', args[1])
  local count = 0
  for _, sub in pairs(self.subs) do
    count = math.max(count, self:waiting(sub) + sub.leased + sub.delayed)
  end
  self:drop_below(self.tail)
  self:tidy(tonumber(args[2]))
  self:save()
  return string.format('%.0f', count)
end

-- args: now, trim limit
local function trim(keys, args)
  local self = load(keys, '0', args[1])
  local head = -1
  while head < self.head do
    head = self.head
    self:tidy(tonumber(args[2]))
  end
  self:save()
  return string.format('%.0f', head)
end

-- Messages that a subscription has not come to yet and that wait for their time; looks at so many blocks.
function Stripe:delayed_ahead(sub, most)
  local at, count = math.max(sub.scan, sub.floor), 0
  for _ = 1, most do
    if at >= self.stable then break end
    local note = self:note_at(at)
    if not note then break end
    if note.not_before > self.now then count = count + note.stop - math.max(at, note.base) end
    at = note.stop
  end
  return count
end

-- args: now, trim limit, promote limit
local function stats(keys, args)
  local self = load(keys, '0', args[1])
  self:tidy(tonumber(args[2]))
  while not self:promote(tonumber(args[3])) do end
  local first = self:note_at(0)
  local subs = {}
  for name, sub in pairs(self.subs) do
    local ahead = self:delayed_ahead(sub, 1000)
    subs[#subs + 1] = {name, string.format('%.0f', sub.floor), string.format('%.0f', self:waiting(sub) - ahead),
      sub.leased, sub.delayed + ahead}
  end
  self:save()
  return {self.epoch, string.format('%.0f', self.head), string.format('%.0f', self.stable),
    string.format('%.0f', self.nbytes), string.format('%.0f', first and first.stored or 0), subs}
end

-- args: now, trim limit. Answers epoch, head, visible tail.
local function bounds(keys, args)
  local self = load(keys, '0', args[1])
  self:tidy(tonumber(args[2]))
  self:save()
  return {self.epoch, string.format('%.0f', self.head), string.format('%.0f', self.stable)}
end

-- args: time. Answers the first offset stored then or later.
local function find(keys, args)
  local self = load(keys, '0', '')
  local lo, hi, time = self.head, self.stable, tonumber(args[1])
  while lo < hi do
    local middle = math.floor((lo + hi) / 2)
    local note = self:note_at(middle)
    if not note or note.base >= hi then
      hi = middle
    elseif note.stored < time then
      lo = note.stop
    else
      hi = math.max(lo, note.base)
    end
  end
  return string.format('%.0f', lo)
end

-- args: offset. What is below it is on as many copies as was promised, and may be seen.
local function stable(keys, args)
  local self = load(keys, '0', '')
  local offset = math.min(tonumber(args[1]), self.tail)
  if offset > self.stable then
    self.stable = offset
    self:save()
    self:announce(args[2])
  end
  return string.format('%.0f', self.stable)
end

-- Records --------------------------------------------------------------------------------------
-- KEYS: 1 hash of values: version, expiry, value; 2 zset of their keys in lexical order

local function live(keys, key, now)
  local raw = call('HGET', keys[1], key)
  if not raw then return nil end
  local version, expires, value = unpack(unpack_(raw))
  if expires > 0 and expires <= now then return nil end
  return {version, expires, value}
end

local function check_version(record, key, expect)
  local version = record and record[1] or 0
  if expect ~= '' and tonumber(expect) ~= version then
    raise('record_conflict', "Record '" .. key .. "' has version " .. version .. ', not ' .. expect .. ': read it again.')
  end
  return version
end

local function record_get(keys, args)
  local record = live(keys, args[2], now_of(args[1]))
  if not record then return {} end
  return {record[1], string.format('%.0f', record[2]), record[3]}
end

-- args: now, key, value, expected version or '', expiry
local function record_put(keys, args)
  local version = check_version(live(keys, args[2], now_of(args[1])), args[2], args[4]) + 1
  call('HSET', keys[1], args[2], pack({version, tonumber(args[5]), args[3]}))
  call('ZADD', keys[2], 0, args[2])
  return version
end

local function record_remove(keys, args)
  local record = live(keys, args[2], now_of(args[1]))
  check_version(record, args[2], args[3])
  call('HDEL', keys[1], args[2])
  call('ZREM', keys[2], args[2])
  return record and 1 or 0
end

-- args: now, from (with its bracket), to (with its bracket), most
local function record_scan(keys, args)
  local now, found, from = now_of(args[1]), {}, args[2]
  local most = tonumber(args[4])
  while #found < most do
    local some = call('ZRANGEBYLEX', keys[2], from, args[3], 'LIMIT', 0, 100)
    if #some == 0 then break end
    for _, key in ipairs(some) do
      local record = live(keys, key, now)
      if record and #found < most then
        found[#found + 1] = {key, record[1], string.format('%.0f', record[2]), record[3]}
      end
    end
    from = '(' .. some[#some]
  end
  return found
end

local function register(name, work, flags)
  redis.register_function{function_name = 'rd_' .. name, callback = guarded(work), flags = flags}
end

register('append', append, {})
register('touch', touch, {'allow-oom'})
register('lease', lease, {'allow-oom'})
register('settle', settle, {'allow-oom'})
register('create', create, {})
register('configure', configure, {'allow-oom'})
register('delete', delete, {'allow-oom'})
register('subscribe', subscribe, {'allow-oom'})
register('unsubscribe', unsubscribe, {'allow-oom'})
register('claim', claim, {'allow-oom'})
register('hold', hold, {'allow-oom'})
register('commit', commit, {'allow-oom'})
register('purge', purge, {'allow-oom'})
register('trim', trim, {'allow-oom'})
register('stats', stats, {'allow-oom'})
register('bounds', bounds, {'allow-oom'})
register('find', find, {'no-writes'})
register('stable', stable, {'allow-oom'})
register('record_get', record_get, {'no-writes'})
register('record_put', record_put, {})
register('record_remove', record_remove, {'allow-oom'})
register('record_scan', record_scan, {'no-writes'})
