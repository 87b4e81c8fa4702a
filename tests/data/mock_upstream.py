#!/usr/bin/env python3
"""Tiny raw-socket upstream for gateway tests.  Loopback only.

  python3 mock_upstream.py [PORT]            (default 18080; 0 takes a free one and prints it)

Speaks OpenAI chat/completions/responses/embeddings/models and Anthropic
messages/count_tokens.  The *model* string picks behaviour:  "mock" is healthy,
"mock+fault1+fault2" adds faults.  Every request is appended (headers + body)
to $MOCK_LOG (JSON lines) so a test can see what the gateway really sent.
With MOCK_UNTIL_EOF set it ends when stdin does, so that it never outlives its test.

Faults (streams): byte1 (one byte per write) crlf cr nospace comment pingblank
  ids bom nodone noevent cut errmid slowN bigline contusage azure noinclude
  zerousage forceusage multiline jsonnotsse ssenotjson
Faults (any): status429 status500 status503 status529 html200 gzip empty200
  hang closenow silentclose (close after the reply, unannounced) te_trailers
  connclose noct hugehdr delayN dated (reply names model <m>-2026-01-01)
  reject_so (400 if stream_options present) usage_str usage_neg usage_null
  usage_float usage_huge
Gemini: POST /v1beta/models/<model>:generateContent and
  :streamGenerateContent (10 in, 20 candidates, 100 thoughts).
"""
import gzip, json, os, re, socket, sys, threading, time

PORT = int(sys.argv[1]) if len(sys.argv) > 1 else 18080
LOG = os.environ.get("MOCK_LOG", "mock_upstream.log")
lock = threading.Lock()
TEXT = ["Hel", "lo", ", w\u00f6rld ", "\u5317\u4eac", "\U0001f30d", "!"]
U = {"prompt_tokens": 100, "completion_tokens": 40, "total_tokens": 140,
     "prompt_tokens_details": {"cached_tokens": 60, "audio_tokens": 0},
     "completion_tokens_details": {"reasoning_tokens": 10, "audio_tokens": 0}}
A_IN = {"input_tokens": 25, "cache_creation_input_tokens": 200, "cache_read_input_tokens": 1000}


def read_request(f):
    line = f.readline(65536)
    if not line:
        return None
    method, path, _ = line.decode("latin1").split(" ", 2)
    hdrs = []
    while True:
        h = f.readline(1 << 20)
        if h in (b"\r\n", b"\n", b""):
            break
        k, _, v = h.decode("latin1").partition(":")
        hdrs.append((k.strip(), v.strip()))
    low = {k.lower(): v for k, v in hdrs}
    body = b""
    if "chunked" in low.get("transfer-encoding", "").lower():
        while True:
            n = int(f.readline().split(b";")[0], 16)
            if n == 0:
                while f.readline() not in (b"\r\n", b"\n", b""):
                    pass
                break
            body += f.read(n)
            f.readline()
    elif "content-length" in low:
        body = f.read(int(low["content-length"]))
    return method, path, hdrs, low, body


class Conn:
    def __init__(self, s, faults):
        self.s, self.faults, self.chunked = s, faults, False

    def raw(self, b):
        if "byte1" in self.faults:
            for i in range(len(b)):
                self.s.sendall(b[i:i + 1])
        else:
            self.s.sendall(b)

    def head(self, status, ctype, extra=(), length=None):
        lines = ["HTTP/1.1 %d X" % status]
        if ctype and "noct" not in self.faults:
            lines.append("Content-Type: " + ctype)
        lines += ["%s: %s" % e for e in extra]
        if "hugehdr" in self.faults:
            lines.append("X-Huge: " + "h" * 60000)
        if length is not None:
            lines.append("Content-Length: %d" % length)
        elif "connclose" in self.faults:
            lines.append("Connection: close")
        else:
            lines.append("Transfer-Encoding: chunked")
            self.chunked = True
        self.s.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())

    def part(self, b):
        if self.chunked:
            self.raw(b"%x\r\n" % len(b) + b + b"\r\n")
        else:
            self.raw(b)

    def end(self):
        if self.chunked:
            t = b"x-trailer: 1\r\n" if "te_trailers" in self.faults else b""
            self.s.sendall(b"0\r\n" + t + b"\r\n")

    def json(self, status, obj, extra=()):
        b = json.dumps(obj, ensure_ascii=False).encode()
        extra = list(extra)
        if "gzip" in self.faults:
            b = gzip.compress(b)
            extra.append(("Content-Encoding", "gzip"))
        self.head(status, "application/json", extra, len(b))
        self.raw(b)

    def sse(self, obj, event=None):
        nl = "\r\n" if "crlf" in self.faults else "\r" if "cr" in self.faults else "\n"
        sp = "" if "nospace" in self.faults else " "
        d = obj if isinstance(obj, str) else json.dumps(obj, ensure_ascii=False)
        out = ""
        if "comment" in self.faults:
            out += ": keep-alive" + nl
        if "pingblank" in self.faults:
            out += ": ping" + nl + nl
        if "ids" in self.faults:
            out += "id:" + sp + str(time.time_ns()) + nl
        if event and "noevent" not in self.faults:
            out += "event:" + sp + event + nl
        if "multiline" in self.faults and d.startswith("{"):
            d = json.dumps(obj, indent=1, ensure_ascii=False)
            out += "".join("data:" + sp + l + nl for l in d.split("\n"))
        else:
            out += "data:" + sp + d + nl
        self.part((out + nl).encode())


def usage_of(f, u):
    u = json.loads(json.dumps(u))
    for k in list(u):
        if not isinstance(u[k], int):
            continue
        if "usage_str" in f: u[k] = str(u[k])
        if "usage_neg" in f: u[k] = -u[k]
        if "usage_null" in f: u[k] = None
        if "usage_float" in f: u[k] = u[k] + 0.5
        if "usage_huge" in f: u[k] = 2 ** 63
        if "zerousage" in f: u[k] = 0
    return u


def num(f, name, d=0.0):
    for x in f:
        m = re.fullmatch(name + r"(\d+)", x)
        if m:
            return int(m.group(1)) / 1000
    return d


def chat_stream(c, f, req, legacy):
    c.head(200, "text/event-stream; charset=utf-8")
    if "bom" in f: c.part(b"\xef\xbb\xbf")
    want = bool((req.get("stream_options") or {}).get("include_usage")) and "noinclude" not in f
    want = want or "forceusage" in f
    base = {"id": "chatcmpl-1", "object": "text_completion" if legacy else "chat.completion.chunk",
            "created": 1, "model": req.get("model")}
    if "azure" in f:
        c.sse({**base, "id": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]})
    n = 0
    for i, t in enumerate(TEXT):
        n += 1
        ch = {"index": 0, "text": t, "finish_reason": None} if legacy else \
             {"index": 0, "delta": ({"role": "assistant"} if i == 0 else {}) | {"content": t}, "finish_reason": None}
        o = {**base, "choices": [ch]}
        if want: o["usage"] = None
        if "contusage" in f: o["usage"] = {"prompt_tokens": 100, "completion_tokens": n * 6, "total_tokens": 100 + n * 6}
        if "bigline" in f and i == 2: o["pad"] = "p" * (3 << 20)
        c.sse(o)
        time.sleep(num(f, "slow"))
        if "cut" in f and i == 2: return "cut"
        if "errmid" in f and i == 2:
            c.sse({"error": {"message": "worker died", "type": "server_error", "code": 503}}); c.end(); return
    fin = {"index": 0, "text": "", "finish_reason": "stop"} if legacy else {"index": 0, "delta": {}, "finish_reason": "stop"}
    c.sse({**base, "choices": [fin]} | ({"usage": None} if want else {}))
    if want: c.sse({**base, "choices": [], "usage": usage_of(f, U)})
    if "nodone" not in f: c.sse("[DONE]")
    c.end()


def msg_stream(c, f, req):
    c.head(200, "text/event-stream")
    c.sse({"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "model": req.get("model"),
           "content": [], "stop_reason": None, "stop_sequence": None, "usage": {**A_IN, "output_tokens": 1}}}, "message_start")
    c.sse({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}, "content_block_start")
    c.sse({"type": "ping"}, "ping")
    for i, t in enumerate(TEXT):
        c.sse({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": t}}, "content_block_delta")
        time.sleep(num(f, "slow"))
        if "cut" in f and i == 2: return "cut"
        if "errmid" in f and i == 2:
            c.sse({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "error"); c.end(); return
    c.sse({"type": "content_block_stop", "index": 0}, "content_block_stop")
    c.sse({"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None},
           "usage": usage_of(f, {**A_IN, "output_tokens": 40})}, "message_delta")
    c.sse({"type": "message_stop"}, "message_stop")
    c.end()


def resp_obj(req, status, usage):
    return {"id": "resp_1", "object": "response", "created_at": 1, "status": status, "model": req.get("model"), "error": None,
            "output": [] if usage is None else [{"type": "message", "id": "m1", "role": "assistant", "status": "completed",
                       "content": [{"type": "output_text", "text": "".join(TEXT), "annotations": []}]}],
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": usage}


RU = {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 0}, "output_tokens": 40,
      "output_tokens_details": {"reasoning_tokens": 10}, "total_tokens": 140}


def resp_stream(c, f, req):
    c.head(200, "text/event-stream")
    c.sse({"type": "response.created", "sequence_number": 0, "response": resp_obj(req, "in_progress", None)}, "response.created")
    for i, t in enumerate(TEXT):
        c.sse({"type": "response.output_text.delta", "sequence_number": i + 1, "item_id": "m1", "output_index": 0, "content_index": 0,
               "delta": t, "logprobs": []}, "response.output_text.delta")
        time.sleep(num(f, "slow"))
        if "cut" in f and i == 2: return "cut"
    c.sse({"type": "response.completed", "sequence_number": 99, "response": resp_obj(req, "completed", usage_of(f, RU))}, "response.completed")
    c.end()


def serve(s):
    f = s.makefile("rb")
    try:
        while True:
            r = read_request(f)
            if not r: return
            method, path, hdrs, low, body = r
            try: req = json.loads(body) if body else {}
            except Exception: req = {"_unparsed": body[:200].decode("latin1")}
            gem = re.match(r"/v1beta/models/([^:]+):(\w+)", path)
            mname = gem.group(1) if gem else str(req.get("model", "")) if isinstance(req, dict) else ""
            faults = set(mname.split("+")[1:])
            with lock, open(LOG, "a") as lf:
                lf.write(json.dumps({"t": time.time(), "method": method, "path": path, "headers": hdrs, "len": len(body),
                                     "body": req if len(body) < 20000 else None}) + "\n")
            c = Conn(s, faults)
            if "closenow" in faults: return
            if "hang" in faults: time.sleep(600); return
            time.sleep(num(faults, "delay"))
            p = path.split("?")[0].rstrip("/")
            anth = "/messages" in p
            for st, typ in ((429, "rate_limit_error"), (500, "api_error"), (503, "api_error"), (529, "overloaded_error")):
                if "status%d" % st in faults:
                    e = {"type": typ, "message": "mock"} if anth else {"message": "mock", "type": typ, "param": None, "code": None}
                    c.json(st, {"type": "error", "error": e} if anth else {"error": e}, [("Retry-After", "1")] if st == 429 else [])
                    break
            else:
                if "dated" in faults: req["model"] = mname.split("+")[0] + "-2026-01-01"
                if "reject_so" in faults and "stream_options" in req:
                    c.json(400, {"error": {"message": "Unknown parameter: stream_options", "type": "invalid_request_error", "param": "stream_options", "code": None}})
                elif gem:
                    um = {"promptTokenCount": 10, "candidatesTokenCount": 20, "thoughtsTokenCount": 100, "totalTokenCount": 130}
                    def g(t, u): return {"candidates": [{"content": {"role": "model", "parts": [{"text": t}]}, "index": 0}], "usageMetadata": u, "modelVersion": mname}
                    if gem.group(2).startswith("stream"):
                        c.head(200, "text/event-stream")
                        for i, t in enumerate(TEXT):
                            last = i == len(TEXT) - 1
                            c.sse(g(t, usage_of(faults, um) if last else {"promptTokenCount": 10, "candidatesTokenCount": 3 * (i + 1), "thoughtsTokenCount": 100, "totalTokenCount": 113 + 3 * i}))
                        c.end()
                    else: c.json(200, g("".join(TEXT), usage_of(faults, um)))
                elif "html200" in faults:
                    c.head(200, "text/html", (), 12); c.raw(b"<h1>oops</h1>"[:12])
                elif "empty200" in faults:
                    c.head(200, "application/json", (), 0)
                elif p.endswith("/count_tokens"): c.json(200, {"input_tokens": 25})
                elif p.endswith("/messages"):
                    if req.get("stream"):
                        if msg_stream(c, faults, req) == "cut": return
                    else:
                        c.json(200, {"id": "msg_1", "type": "message", "role": "assistant", "model": req.get("model"),
                                     "content": [{"type": "text", "text": "".join(TEXT)}], "stop_reason": "end_turn",
                                     "stop_sequence": None, "usage": usage_of(faults, {**A_IN, "output_tokens": 40})})
                elif p.endswith("/embeddings"):
                    c.json(200, {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.1, 0.2]}],
                                 "model": req.get("model"), "usage": usage_of(faults, {"prompt_tokens": 8, "total_tokens": 8})})
                elif p.endswith("/models"): c.json(200, {"object": "list", "data": [{"id": "mock", "object": "model", "created": 1, "owned_by": "m"}]})
                elif p.endswith("/responses"):
                    if req.get("stream"):
                        if resp_stream(c, faults, req) == "cut": return
                    else: c.json(200, resp_obj(req, "completed", usage_of(faults, RU)))
                elif p.endswith("/completions"):
                    legacy = not p.endswith("/chat/completions")
                    if (req.get("stream") or "ssenotjson" in faults) and "jsonnotsse" not in faults:
                        if chat_stream(c, faults, req, legacy) == "cut": return
                    else:
                        t = "".join(TEXT)
                        ch = {"index": 0, "text": t, "finish_reason": "stop", "logprobs": None} if legacy else \
                             {"index": 0, "message": {"role": "assistant", "content": t}, "finish_reason": "stop"}
                        c.json(200, {"id": "c1", "object": "text_completion" if legacy else "chat.completion", "created": 1,
                                     "model": req.get("model"), "choices": [ch], "usage": usage_of(faults, U)})
                else: c.json(404, {"error": {"message": "no route " + p, "type": "invalid_request_error"}})
            if "silentclose" in faults or "connclose" in faults or low.get("connection", "").lower() == "close": return
    except (BrokenPipeError, ConnectionResetError):
        with lock, open(LOG, "a") as lf: lf.write(json.dumps({"t": time.time(), "peer_gone": True}) + "\n")
    finally:
        try: s.shutdown(socket.SHUT_RDWR)
        except OSError: pass
        s.close()


def leave_with_stdin():
    sys.stdin.buffer.read()
    os._exit(0)


if os.environ.get("MOCK_UNTIL_EOF"):
    threading.Thread(target=leave_with_stdin, daemon=True).start()
ls = socket.create_server(("127.0.0.1", PORT), backlog=512)
print("mock on 127.0.0.1:%d pid %d" % (ls.getsockname()[1], os.getpid()), flush=True)
while True:
    s, _ = ls.accept()
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    threading.Thread(target=serve, args=(s,), daemon=True).start()
