
yeto.fields = field
yeto.experts = breaches

yeto.prefs.ports = Pref.range("TCP ports", "29400", "Ports that syncers listen on.", 65535)
yeto.prefs.values = Pref.uint("Values shown", 8, "How many values of a tensor are decoded for display.")
yeto.prefs.fragments = Pref.uint("Fragments shown", 1000, "How many fragments of a layout are shown.")
yeto.prefs.message_mib = Pref.uint(
    "Largest message put together (MiB)", 64, "Messages of more bytes are shown as their chunks alone.")
yeto.prefs.extensions = Pref.bool(
    "HELLO ends in a MAC", false, "The syncer has a shared key (extension hello_mac).")
yeto.prefs.kept_mib = Pref.uint(
    "Memory for messages (MiB)", 512, "When the messages put together take more, further ones are not.")

-- What is remembered from packet to packet. It is built on the first pass through a capture, in order, and only
-- looked up later.

local sockets    -- by TCP stream: its server, its group, whether frames were seen, the packet that broke it
local sessions   -- by the syncer's address and port: what its first HELLO fixed
local groups     -- by syncer, learner and generation: {learner_id, num_streams, key, messages = {...}}
local finished   -- by packet and chunk: the bytes of the message that this chunk completed
local notes      -- by packet and place: the rule that was broken there
local totals     -- by packet and chunk: the length that the first chunk of its message announced
local kept       -- bytes in `finished`
local faults     -- broken rules so far
local tcp_stream = Field.new("tcp.stream")
local completeness = Field.new("tcp.completeness")

function yeto.init()
    sockets, sessions, groups, finished, notes, totals = {}, {}, {}, {}, {}, {}
    kept, faults = 0, 0
end

local function socket_of(pinfo)
    local key = tcp_stream().value
    if sockets[key] == nil then
        sockets[key] = {id = key}
    end
    return sockets[key]
end

-- Values ------------------------------------------------------------------------------------------------------

local READ = {
    u8 = function(range) return range:uint() end,
    u16 = function(range) return range:le_uint() end,
    u32 = function(range) return range:le_uint() end,
    u64 = function(range) return range:le_uint64():tonumber() end,
    digest = function(range) return tostring(range:bytes()) end,
}

local function from_bf16(bits)
    local sign = bits >= 32768 and -1 or 1
    local exponent, fraction = math.floor(bits / 128) % 256, bits % 128
    if exponent == 255 then
        return fraction == 0 and sign / 0 or 0 / 0
    elseif exponent == 0 then
        return sign * math.ldexp(fraction / 128, -126)
    end
    return sign * math.ldexp(1 + fraction / 128, exponent - 127)
end

local VALUE = {
    [F32] = function(tvb, i) return tvb(4 * i, 4):le_float() end,
    [BF16] = function(tvb, i) return from_bf16(tvb(2 * i, 2):le_uint()) end,
    [Q4] = function(tvb, i)
        local block = math.floor(i / Q4_BLOCK) * Q4_BLOCK_BYTES
        local place = i % Q4_BLOCK
        local byte = tvb(block + 4 + math.floor(place / 2), 1):uint()
        local nibble = place % 2 == 0 and byte % 16 or math.floor(byte / 16)
        local level = nibble % 8
        if level == 0 then
            return 0
        end
        return (nibble >= 8 and -1 or 1) * math.ldexp(tvb(block, 4):le_float(), level - 7)
    end,
}

local function preview(tvb, encoding, numel)
    local shown = {}
    for i = 0, math.min(numel, yeto.prefs.values) - 1 do
        shown[#shown + 1] = string.format("%.9g", VALUE[encoding](tvb, i))
    end
    local dots = numel > #shown and ", ..." or ""
    return string.format("%s x %d: %s%s", Dtype_NAMES[encoding], numel, table.concat(shown, ", "), dots)
end

-- Rules -------------------------------------------------------------------------------------------------------

local function broken(item, id, detail)
    faults = faults + 1
    if breaches[id] ~= nil then
        item:add_proto_expert_info(breaches[id])
    end
    if detail then
        item:append_text(" [" .. detail .. "]")
    end
end

local function judge(rules, item, m, c)
    for _, rule in ipairs(rules or {}) do
        if not rule.holds(m, c) then
            broken(item, rule.id)
        end
    end
end

-- Payloads ----------------------------------------------------------------------------------------------------

-- A structure `count` times. Returns the offset behind it, the values of each fragment and of the largest one; or
-- nil when the payload ends before it. Of a field that repeats, rules see the elements of equal number.
local function structure(name, count, tvb, at, tree)
    local numels, most = {}, 0
    for i = 0, count - 1 do
        local part, lists = {left = tvb:len() - at}, {}
        local shown = i < yeto.prefs.fragments
        local branch = shown and tree:add(tvb(at, math.min(5, part.left)), string.format("fragment %d", i))
        local begin, numel = at, 0
        for _, each in ipairs(STRUCTURES[name]) do
            if each.present == nil or each.present(part) then
                local times = each.count and part[each.count] or 1
                if tvb:len() - at < times * each.size then
                    return nil
                end
                for i = 1, times do
                    local item
                    for label, list in pairs(lists) do
                        part[label] = list[i]
                    end
                    local width = each.size / #each.labels
                    for _, label in ipairs(each.labels) do
                        local range = tvb(at, width)
                        item = shown and branch:add_le(field[name .. "." .. label], range)
                        part[label] = width == 8 and range:le_uint64():tonumber() or range:le_uint()
                        if each.count then
                            lists[label] = lists[label] or {}
                            lists[label][i] = part[label]
                        end
                        at = at + width
                    end
                    numel = each.name == "numels" and numel + part.numel or numel
                    part.left = tvb:len() - at
                    judge(each.rules, item or tree, part, {})
                end
            end
        end
        if shown then
            branch:set_len(at - begin)
            branch:append_text(string.format(": %s, %.0f values", MergeMode_NAMES[part.merge_mode] or "?", numel))
        end
        numels[i], most = numel, math.max(most, numel)
    end
    return at, numels, most
end

-- One field, as often as its count says. Returns the offset behind it, or nil when the payload ends before it.
local function one_field(frame, each, tvb, at, tree, m, c)
    m.left = tvb:len() - at
    judge(each.before, tree, m, c)
    if each.present ~= nil and not each.present(m) then
        return at
    end
    local times = each.count and m[each.count] or 1
    if each.structure ~= nil then
        local branch = tree:add(tvb(at), string.format("%s: %d", each.name, times))
        local stop, numels, most = structure(each.structure, times, tvb, at, branch)
        if stop == nil then
            return nil
        end
        branch:set_len(stop - at)
        m[each.name] = tostring(tvb(at, stop - at):bytes())
        m.numels, m.max_numel, m.left = numels, most, tvb:len() - stop
        judge(each.rules, branch, m, c)
        return stop
    end
    for _ = 1, times do
        if tvb:len() - at < each.size then
            return nil
        end
        local range = tvb(at, each.size)
        local item = tree:add_le(field[frame.slug .. "." .. each.name], range)
        m[each.name] = READ[each.type](range)
        at = at + each.size
        m.left = tvb:len() - at
        if each.type ~= "digest" and each.count == nil and #m.summary < 5 then
            m.summary[#m.summary + 1] = each.name .. "=" .. (each.type == "u64" and tostring(range:le_uint64())
                or tostring(m[each.name]))
        end
        judge(each.rules, item, m, c)
    end
    return at
end

local function bulk_of(frame, tvb, at, tree, m, c)
    local bulk = frame.bulk
    m[bulk.name] = {length = tvb:len() - at}
    if at >= tvb:len() then
        judge(bulk.rules, tree, m, c)
        return
    end
    local item = tree:add(field[frame.slug .. "." .. bulk.name], tvb(at))
    judge(bulk.rules, item, m, c)
    local numel = c.session and m.fragment_id and c.session.numels[m.fragment_id]
    if bulk.encodings ~= nil and numel ~= nil then
        local encoding = bulk.encodings[c.session.dtype]
        if push_bytes(encoding, numel) == tvb:len() - at then
            tree:add(field.values, tvb(at), preview(tvb(at):tvb(), encoding, numel))
        end
    end
end

-- A payload. Returns its fields.
local function payload(frame, tvb, tree, c)
    local m, at = {summary = {frame.name}}, 0
    local extension = frame.extension
    if extension and yeto.prefs.extensions and tvb:len() >= extension.bytes then
        local body = tvb:len() - extension.bytes
        tree:add(field[frame.slug .. "." .. extension.name], tvb(body))
        tvb = tvb(0, body):tvb()
    end
    for _, each in ipairs(frame.fields) do
        at = one_field(frame, each, tvb, at, tree, m, c)
        if at == nil then
            broken(tree, frame.slug .. ".payload.complete")
            return m, false
        end
    end
    if frame.bulk ~= nil then
        bulk_of(frame, tvb, at, tree, m, c)
    elseif at < tvb:len() then
        broken(tree, frame.slug .. ".payload.end", string.format("%d bytes more", tvb:len() - at))
    end
    judge(frame.rules, tree, m, c)
    return m, true
end

-- The first HELLO to a syncer fixes the session; a capture does not show whether it was accepted.
local function remember(frame, m, server, socket)
    if frame.name == "HELLO" then
        local session = {numels = m.numels, max_numel = m.max_numel, num_fragments = m.num_fragments}
        for _, each in ipairs(frame.fields) do
            if each.fixes ~= nil then
                session[each.fixes] = m[each.name]
            end
        end
        sessions[server] = sessions[server] or session
    end
    local key = string.format("%s learner %d generation %.0f", server, m.learner_id, m.connection_generation)
    groups[key] = groups[key] or {key = key, learner_id = m.learner_id, messages = {syncer = {}, learner = {}}}
    if frame.name == "HELLO" then
        groups[key].num_streams = m.num_streams
    end
    socket.group = groups[key]
end

-- Chunks --------------------------------------------------------------------------------------------------

local function chunk_id(pinfo, socket, msg_id, offset)
    return string.format("%d %d %s %s", pinfo.number, socket.id, tostring(msg_id:bytes()), tostring(offset:bytes()))
end

-- Adds a chunk to its message on the first pass; `c.message` is what the rules of a CHUNK may name.
local function gather(id, m, data, open)
    local message = open[m.msg_id]
    if message == nil then
        message = {total_len = m.total_len, held = 0, pieces = {}}
        open[m.msg_id] = message
    end
    for _, piece in ipairs(message.pieces) do
        if m.offset < piece.stop and piece.start < m.offset + #data then
            notes[id] = "chunk.data.overlap"
            return
        end
    end
    if message.total_len > yeto.prefs.message_mib * 1048576 then
        message.held = message.held + #data
        message.pieces[#message.pieces + 1] = {start = m.offset, stop = m.offset + #data}
    else
        message.pieces[#message.pieces + 1] = {start = m.offset, stop = m.offset + #data, data = data}
        message.held = message.held + #data
    end
    if message.held < message.total_len then
        return
    end
    open[m.msg_id] = nil
    if message.pieces[1].data == nil or kept + message.total_len > yeto.prefs.kept_mib * 1048576 then
        return
    end
    table.sort(message.pieces, function(a, b) return a.start < b.start end)
    local parts = {}
    for i, piece in ipairs(message.pieces) do
        parts[i] = piece.data
    end
    kept = kept + message.total_len
    finished[id] = table.concat(parts)
end

local one_frame
local separator  -- between frames of one packet in the list of packets

local function chunk(tvb, tree, m, c, pinfo, socket, receiver)
    if tvb:len() <= CHUNK_HEAD_BYTES or receiver == nil then
        return
    end
    local group = socket.group or socket
    group.messages = group.messages or {syncer = {}, learner = {}}
    local id = chunk_id(pinfo, socket, tvb(0, 8), tvb(16, 8))
    if not pinfo.visited and notes[id] == nil and finished[id] == nil then
        gather(id, m, tvb:raw(CHUNK_HEAD_BYTES), group.messages[receiver])
    end
    if notes[id] ~= nil then
        broken(tree, notes[id])
    end
    if finished[id] ~= nil then
        local inner = ByteArray.new(finished[id], true):tvb("yeto message")
        local type = inner:len() >= HEADER_BYTES and inner(4, 1):uint() or 0
        local good = inner:len() >= HEADER_BYTES and inner:raw(0, 4) == MAGIC and FRAMES[type] ~= nil
            and inner(5, 8):le_uint64():tonumber() == inner:len() - HEADER_BYTES and FRAMES[type].name ~= "CHUNK"
        if not good then
            broken(tree, "chunk.data.inner")
            return
        end
        one_frame(inner, tree, pinfo, socket, receiver, true)
    end
end

-- Frames --------------------------------------------------------------------------------------------------

local function context_of(socket, receiver)
    local c = {session = socket.server and sessions[socket.server], link = socket.group, group = socket.group}
    c.total_limit = receiver and TOTAL_LIMIT[receiver](c) or MAX_ALLOC
    return c
end

-- A whole frame, its header included.
function one_frame(tvb, tree, pinfo, socket, receiver, inside)
    local type = tvb(4, 1):uint()
    local frame = FRAMES[type]
    local branch = tree:add(yeto, tvb(), frame.name)
    local head = branch:add(tvb(0, HEADER_BYTES), "header")
    head:add_le(field["header.magic"], tvb(0, 4))
    head:add(field["header.type"], tvb(4, 1))
    head:add_le(field["header.len"], tvb(5, 8))
    if receiver and frame.receiver and frame.receiver ~= receiver then
        broken(branch, "header.type.direction")
    end
    local c = context_of(socket, receiver)
    local opens = frame.name == "HELLO" or frame.name == "DATA_HELLO"
    if opens and frame.name == "DATA_HELLO" and tvb:len() >= HEADER_BYTES + 14 then
        local learner, generation = tvb(HEADER_BYTES + 2, 4):le_uint(), tvb(HEADER_BYTES + 6, 8):le_uint64()
        local known = string.format("%s learner %d generation %.0f", socket.server or "?", learner, generation:tonumber())
        c.group = groups[known] and groups[known].num_streams and groups[known]
    elseif frame.name == "CHUNK" and receiver and tvb:len() >= HEADER_BYTES + CHUNK_HEAD_BYTES then
        local id = chunk_id(pinfo, socket, tvb(HEADER_BYTES, 8), tvb(HEADER_BYTES + 16, 8))
        local group = socket.group or socket
        local open = group.messages and group.messages[receiver][tvb(HEADER_BYTES, 8):le_uint64():tonumber()]
        if not pinfo.visited and open then
            totals[id] = open.total_len
        end
        c.message = totals[id] and {total_len = totals[id]}
    end
    local body = tvb:len() > HEADER_BYTES and tvb(HEADER_BYTES):tvb() or ByteArray.new():tvb("empty")
    local before = faults
    local m, complete = payload(frame, body, branch, c)
    branch:append_text(": " .. table.concat(m.summary, " ", 2))
    pinfo.cols.info:append((inside and " > " or separator) .. table.concat(m.summary, " "))
    separator = "; "
    if opens and complete and faults == before and socket.server ~= nil then
        remember(frame, m, socket.server, socket)
    end
    if socket.group ~= nil and not inside then
        branch:add(field.group, socket.group.key):set_generated()
    end
    if frame.name == "CHUNK" and complete then
        chunk(body, branch, m, c, pinfo, socket, receiver)
    end
end

-- Which side takes what this packet holds: the syncer is where the HELLO went, or has one of the ports.
local function receiver_of(pinfo, socket, type)
    local opens = FRAMES[type] and (FRAMES[type].name == "HELLO" or FRAMES[type].name == "DATA_HELLO")
    if socket.server == nil then
        local way = FRAMES[type] and FRAMES[type].receiver
        if opens or way == "syncer" then
            socket.server_port, socket.server = pinfo.dst_port, tostring(pinfo.dst) .. ":" .. pinfo.dst_port
        elseif way == "learner" then
            socket.server_port, socket.server = pinfo.src_port, tostring(pinfo.src) .. ":" .. pinfo.src_port
        end
    end
    if socket.server == nil then
        return nil
    end
    return pinfo.dst_port == socket.server_port and "syncer" or "learner"
end

-- Where the next frame starts in bytes that do not begin with one: a capture that began in mid-stream.
local function next_magic(tvb, at)
    local found = tvb:raw():find(MAGIC, at + 1, true)
    return found and found - 1
end

local function rest_is_broken(tvb, at, tree, id, pinfo, socket, detail)
    local item = tree:add(yeto, tvb(at), "not a frame")
    broken(item, id, detail)
    socket.broken = socket.broken or pinfo.number
    pinfo.cols.info:append(separator .. "broken frame: " .. (detail or id))
    return tvb:len()
end

function yeto.dissector(tvb, pinfo, tree)
    pinfo.cols.protocol = "YETO"
    local socket = socket_of(pinfo)
    local at, started = 0, false
    separator = ""
    pinfo.cols.info:set("")
    while at < tvb:len() do
        if socket.broken and pinfo.number > socket.broken then
            tree:add(yeto, tvb(at), string.format("after the broken frame of packet %d", socket.broken))
            return tvb:len()
        end
        local left = tvb:len() - at
        if left < HEADER_BYTES then
            pinfo.desegment_offset, pinfo.desegment_len = at, DESEGMENT_ONE_MORE_SEGMENT
            return tvb:len()
        end
        if tvb:raw(at, 4) ~= MAGIC then
            if socket.synced then
                return rest_is_broken(tvb, at, tree, "header.magic.must", pinfo, socket)
            end
            local skipped = next_magic(tvb, at)
            tree:add(yeto, tvb(at, (skipped or tvb:len()) - at), "the end of a frame that began before the capture")
            if skipped == nil then
                return tvb:len()
            end
            at = skipped
        else
            local type, length = tvb(at + 4, 1):uint(), tvb(at + 5, 8):le_uint64():tonumber()
            local frame = FRAMES[type]
            local receiver = receiver_of(pinfo, socket, type)
            if frame == nil then
                return rest_is_broken(tvb, at, tree, "header.type.known", pinfo, socket, "type " .. type)
            end
            local limit = frame.limit(context_of(socket, receiver)) or MAX_ALLOC
            if length > limit then
                return rest_is_broken(tvb, at, tree, "header.len.limit", pinfo, socket,
                    string.format("%s of %.0f bytes, at most %.0f", frame.name, length, limit))
            end
            if left < HEADER_BYTES + length then
                pinfo.desegment_offset = at
                pinfo.desegment_len = HEADER_BYTES + length - left
                return tvb:len()
            end
            if receiver == "syncer" and not socket.opener and not pinfo.visited then
                socket.opener = pinfo.number
                socket.first_broken = completeness().value % 2 == 1 and frame.name ~= "HELLO" and frame.name ~= "DATA_HELLO"
            end
            if socket.first_broken and socket.opener == pinfo.number and not started then
                broken(tree:add(yeto, tvb(at, HEADER_BYTES), "the first frame"), "header.type.first")
            end
            socket.synced = true
            started = true
            one_frame(tvb(at, HEADER_BYTES + length):tvb(), tree, pinfo, socket, receiver, false)
            at = at + HEADER_BYTES + length
        end
    end
    return tvb:len()
end

-- Ports -------------------------------------------------------------------------------------------------------

local tcp_port = DissectorTable.get("tcp.port")
local ports = yeto.prefs.ports
tcp_port:add(ports, yeto)

function yeto.prefs_changed()
    if ports ~= yeto.prefs.ports then
        tcp_port:remove(ports, yeto)
        ports = yeto.prefs.ports
        tcp_port:add(ports, yeto)
    end
end

yeto:register_heuristic("tcp", function(tvb, pinfo, tree)
    if tvb:len() < HEADER_BYTES or tvb:raw(0, 4) ~= MAGIC then
        return false
    end
    local frame = FRAMES[tvb(4, 1):uint()]
    if frame == nil or (frame.name ~= "HELLO" and frame.name ~= "DATA_HELLO") then
        return false
    end
    pinfo.conversation = yeto
    yeto.dissector(tvb, pinfo, tree)
    return true
end)
