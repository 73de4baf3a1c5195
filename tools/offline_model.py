"""A model for a learner without a key: it speaks the Messages API, by rules and not by chat.

    serve(policy)      a server on the loopback that refuses what the real API refuses
    player(request)    a policy that plays the lead and the teammates of the lessons

Run it alone with `python tools/offline_model.py --port 8787`. Left out: streaming, server tools.
"""

import argparse
import contextlib
import itertools
import json
import os
import re
import socket
import socketserver
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MAX_BODY = 32 * 1024 * 1024     # bytes of a request; the real API takes no more
CHUNK = 1 << 16                 # bytes read at a time of a body that is thrown away
BACKLOG = 512                   # clients that may knock at one moment
CLOSE_WITHIN = 0.05             # seconds until the accepting loop sees that it shall end


# ── What a policy answers ────────────────────────────────────────────

def text(words):
    """A block of words."""
    return {"type": "text", "text": words}


def call(tool, /, **arguments):
    """A block that calls a tool; the server gives it its id."""
    return {"type": "tool_use", "name": tool, "input": arguments}


class ApiError(Exception):
    """A refusal, with the status and the error type of the real API."""

    def __init__(self, status, type, message, headers=None):
        super().__init__(message)
        self.status, self.type, self.message = status, type, message
        self.headers = {name.lower(): str(value) for name, value in (headers or {}).items()}
        retryable = status in (408, 409, 429) or status >= 500
        if retryable and "retry-after" not in self.headers:
            self.headers.setdefault("retry-after-ms", "1")      # the SDK's retries take no time

    def raw(self):
        """The refusal as an HTTP answer."""
        request_id = new_id("req")
        body = {"type": "error", "error": {"type": self.type, "message": self.message},
                "request_id": request_id}
        return Raw.of(body, self.status, {"request-id": request_id, **self.headers})


@dataclass(frozen=True)
class Raw:
    """An HTTP answer as it is; if it promises more bytes than it has, the connection breaks off."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"
    promised: int | None = None
    headers: dict = field(default_factory=dict)

    @classmethod
    def of(cls, value, status=200, headers=None):
        """The HTTP answer that carries a value as JSON."""
        return cls(json.dumps(value).encode(), status, headers=headers or {})


def new_id(prefix):
    """An id that no conversation has seen."""
    return f"{prefix}_{uuid.uuid4().hex[:24]}"


def rough_tokens(value):
    """One token for every four characters."""
    return len(json.dumps(value, ensure_ascii=False)) // 4 + 1


def whole_message(answer, request):
    """The Message that a policy's answer stands for."""
    fields = answer if isinstance(answer, dict) else {"content": answer}
    content = [{"id": new_id("toolu"), **block} if block["type"] == "tool_use" else block
               for block in as_blocks(fields.get("content", []))]
    calls_a_tool = any(block["type"] == "tool_use" for block in content)
    usage = {"input_tokens": rough_tokens(request), "output_tokens": rough_tokens(content)}
    return {"id": new_id("msg"), "type": "message", "role": "assistant", "model": request["model"],
            "stop_reason": "tool_use" if calls_a_tool else "end_turn", "stop_sequence": None,
            "usage": usage, **fields, "content": content}


def as_blocks(content):
    """Content as a list of blocks, whether it came as one or as a string."""
    if isinstance(content, str):
        return [text(content)] if content else []
    return content


# ── What a request must look like ────────────────────────────────────

def form(pattern):
    """The test that a value is a string of this form."""
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


STRING = ("a string", lambda value: isinstance(value, str))
NAME = ("a non-empty string", lambda value: isinstance(value, str) and value != "")
COUNT = ("a positive integer", lambda value: type(value) is int and value > 0)   # True is no 1
NUMBER = ("a number", lambda value: type(value) in (int, float))
BOOL = ("true or false", lambda value: isinstance(value, bool))
OBJECT = ("an object", lambda value: isinstance(value, dict))
LIST = ("a list", lambda value: isinstance(value, list))
WORDS = ("a string or a list of blocks", lambda value: isinstance(value, (str, list)))
STRINGS = ("a list of strings",
           lambda value: isinstance(value, list) and all(isinstance(v, str) for v in value))
ROLE = ("'user' or 'assistant'", lambda value: value in ("user", "assistant"))
CALL_ID = ("an id of letters, digits, _ and -", form(r"[a-zA-Z0-9_-]+"))
TOOL_NAME = ("1 to 64 letters, digits, _ and -", form(r"[a-zA-Z0-9_-]{1,64}"))
SCHEMA = ("an object schema, with type 'object'",
          lambda value: isinstance(value, dict) and value.get("type") == "object")
WHOLE = ("false: this server does not stream", lambda value: value is False)

# A shape: field -> what it must be; a question mark stands behind a field that may be missing.
REQUEST = {"model": NAME, "max_tokens": COUNT, "messages": LIST, "system?": WORDS, "tools?": LIST,
           "tool_choice?": OBJECT, "stop_sequences?": STRINGS, "metadata?": OBJECT,
           "temperature?": NUMBER, "top_p?": NUMBER, "top_k?": NUMBER, "stream?": WHOLE}
MESSAGE = {"role": ROLE, "content": WORDS}
TOOL = {"name": TOOL_NAME, "description?": STRING, "input_schema": SCHEMA}
BLOCKS = {      # type of a block -> its shape
    "text": {"text": STRING},
    "image": {"source": OBJECT},
    "document": {"source": OBJECT},
    "thinking": {"thinking": STRING, "signature": STRING},
    "redacted_thinking": {"data": STRING},
    "tool_use": {"id": CALL_ID, "name": TOOL_NAME, "input": OBJECT},
    "tool_result": {"tool_use_id": CALL_ID, "content?": WORDS, "is_error?": BOOL},
}
BLOCK = {"type": (f"one of {', '.join(BLOCKS)}", lambda value: str(value) in BLOCKS)}
HOLDS = {       # where a block stands -> the types that may stand there
    "system": ("text",),
    "user": ("text", "image", "document", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "tool_result": ("text", "image", "document"),
}


def misfits(where, value, shape):
    """What is wrong with a value that shall have this shape."""
    if not isinstance(value, dict):
        yield f"{where}: must be an object"
        return
    for field, (kind, fits) in shape.items():
        name = field.rstrip("?")
        if name in value and not fits(value[name]):
            yield f"{where}.{name}: must be {kind}"
        if name not in value and name == field:
            yield f"{where}.{name}: field required"


def every_block(request):
    """(path, where it stands, block) of every block, those inside a tool_result too."""
    for i, block in enumerate(as_blocks(request.get("system", []))):
        yield f"system.{i}", "system", block
    for i, message in enumerate(request["messages"]):
        for j, block in enumerate(as_blocks(message["content"])):
            path = f"messages.{i}.content.{j}"
            yield path, message["role"], block
            inner = block.get("content", []) if block["type"] == "tool_result" else []
            for k, part in enumerate(as_blocks(inner)):
                yield f"{path}.content.{k}", "tool_result", part


def merged(messages):
    """The messages as the model sees them: neighbours of one role are one message (rule 2)."""
    groups = itertools.groupby(messages, key=lambda message: message["role"])
    return [{"role": role, "content": [block for message in group
                                       for block in as_blocks(message["content"])]}
            for role, group in groups]


# A rule yields what is wrong. Only the first fault is asked for, so a rule may trust those before.

def right_shapes(request):
    """Rule 1: what is required is there, all is of the right type, the user speaks first."""
    yield from misfits("request", request, REQUEST)
    if not request["messages"]:
        yield "messages: at least one message is required"
    for i, message in enumerate(request["messages"]):
        yield from misfits(f"messages.{i}", message, MESSAGE)
        for name in message.keys() - MESSAGE.keys():
            yield f"messages.{i}.{name}: extra inputs are not permitted"
    if request["messages"][0]["role"] != "user":
        yield "messages: the first message must use the user role"
    for path, _, block in every_block(request):
        yield from misfits(path, block, BLOCK)
        yield from misfits(path, block, BLOCKS[block["type"]])


def nothing_empty(request):
    """Rule 3: only a last assistant message may be empty, no text may be blank."""
    *earlier, last = request["messages"]
    for i, message in enumerate(earlier if last["role"] == "assistant" else request["messages"]):
        if not message["content"]:
            yield f"messages.{i}: only the last assistant message may have empty content"
    for path, _, block in every_block(request):
        if block["type"] == "text" and not block["text"].strip():
            yield f"{path}: text content blocks must contain non-whitespace text"
        if block.get("is_error") and not block.get("content"):
            yield f"{path}: content cannot be empty if is_error is true"


def results_follow_calls(request):
    """Rule 4: the message after a tool_use begins with one result for each, and no other."""
    seen = set()
    nobody = {"role": "", "content": []}
    for before, after in itertools.pairwise([nobody, *merged(request["messages"]), nobody]):
        asked = ids(before, "assistant", "tool_use", "id")
        given = ids(after, "user", "tool_result", "tool_use_id")
        if len(set(asked)) < len(asked) or seen & set(asked):
            yield "messages: tool_use ids must be unique in the conversation"
        if missing := [id for id in asked if id not in given]:
            yield f"messages: tool_use without a tool_result right after it: {', '.join(missing)}"
        if strange := [id for id in given if id not in asked]:
            yield f"messages: tool_result without a tool_use right before it: {', '.join(strange)}"
        if len(set(given)) < len(given):
            yield "messages: each tool_use must have a single tool_result"
        if any(block["type"] != "tool_result" for block in after["content"][:len(given)]):
            yield "messages: tool_result blocks must come before other blocks"
        seen.update(asked)


def ids(message, role, type, field):
    """The ids in the blocks of a type, if the message is of the role that sends them."""
    return [block[field] for block in message["content"]
            if message["role"] == role and block["type"] == type]


def right_places(request):
    """Rule 5: only the assistant calls tools, only the user brings results."""
    for path, place, block in every_block(request):
        if block["type"] not in HOLDS[place]:
            yield f"{path}: a {block['type']} block cannot stand in {place} content"


def clean_ending(request):
    """Rule 6: a last assistant text does not end in whitespace."""
    last = merged(request["messages"])[-1]
    words = [block.get("text", "") for block in last["content"][-1:]]
    if last["role"] == "assistant" and words and words[0] != words[0].rstrip():
        yield "messages: the final assistant text cannot end with trailing whitespace"


def right_tools(request):
    """Rule 7: a tool has a name of its own and a schema."""
    names = set()
    for i, tool in enumerate(request.get("tools", [])):
        yield from misfits(f"tools.{i}", tool, TOOL)
        if tool["name"] in names:
            yield f"tools.{i}.name: tool names must be unique"
        names.add(tool["name"])


RULES = [right_shapes, nothing_empty, results_follow_calls, right_places, clean_ending, right_tools]


def parsed(body):
    """The request in a body, if it keeps the rules."""
    try:
        request = json.loads(body)
        json.dumps(request, ensure_ascii=False).encode()    # half a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise invalid(f"the request body is not valid JSON: {error}") from None
    if fault := next(itertools.chain.from_iterable(rule(request) for rule in RULES), None):
        raise invalid(fault)
    if "no-such-model" in request["model"]:
        raise no_such(f"model: {request['model']}")
    return request


def no_such(thing):
    """The refusal of what is not here."""
    return ApiError(404, "not_found_error", f"not found: {thing}")


def invalid(message, status=400):
    """The refusal of a request that is wrong in itself."""
    return ApiError(status, "invalid_request_error", message)


# ── The server ───────────────────────────────────────────────────────

MESSAGES = "/v1/messages"
WRONG_METHOD = invalid("method not allowed: use POST", 405)


class Handler(BaseHTTPRequestHandler):
    """One client's connection: each request is refused, or given to the policy."""

    protocol_version = "HTTP/1.1"       # keeps the connection for the next request
    disable_nagle_algorithm = True      # else an answer may wait 40 ms for an acknowledgement

    def do_POST(self):
        """Answer a request for a message."""
        try:
            request = self.checked()
        except ApiError as refusal:
            self.turn_away(refusal)
        else:
            self.server.requests.append(request)
            self.reply(self.server.play(request))

    def do_GET(self):
        """Tell who looks in with a browser what this is."""
        path = self.path.partition("?")[0]
        if path == "/":
            self.reply(Raw.of({"message": "The offline model listens at POST /v1/messages."}))
        else:
            self.turn_away(WRONG_METHOD if path == MESSAGES else no_such(f"path: {path}"))

    do_HEAD = do_GET

    def checked(self):
        """The request, if nothing is wrong with it."""
        body = self.body()      # whatever it is; unread, it would be taken for the next request
        path = self.path.partition("?")[0]
        if path != MESSAGES:
            raise no_such(f"path: {path}")
        if not (self.headers.get("x-api-key") or self.headers.get("authorization")):
            raise ApiError(401, "authentication_error", "x-api-key header is required")
        return parsed(body)

    def body(self):
        """The bytes of the request."""
        length = self.headers.get("content-length", "")
        if not form("[0-9]{1,15}")(length):
            self.close_connection = True
            raise invalid("a Content-Length header is required", 411)
        left = int(length)
        if left <= MAX_BODY:
            return self.rfile.read(left)
        while left > 0 and (chunk := self.rfile.read(min(left, CHUNK))):
            left -= len(chunk)      # a client listens only after it has sent all
        raise ApiError(413, "request_too_large", f"request exceeds {MAX_BODY} bytes")

    def turn_away(self, refusal):
        """Refuse a request by a rule of the server's own."""
        self.server.refusals.append((refusal.status, refusal.message))
        self.reply(refusal.raw())

    def send_error(self, code, message=None, explain=None):
        """Refuse what http.server cannot read; it would answer in HTML."""
        self.close_connection = True
        self.turn_away(WRONG_METHOD if code == 501 else invalid(message or "bad request", code))

    def reply(self, raw):
        """Send headers and body in one write, so that they travel together."""
        length = len(raw.body) if raw.promised is None else raw.promised
        headers = {"content-type": raw.content_type, "content-length": length,
                   "request-id": new_id("req"), **raw.headers}
        if raw.promised is not None:
            self.close_connection = True
        if self.close_connection:
            headers["connection"] = "close"
        reason = self.responses.get(raw.status, ("",))[0]
        lines = [f"HTTP/1.1 {raw.status} {reason}", *(f"{k}: {v}" for k, v in headers.items())]
        body = b"" if self.command == "HEAD" else raw.body
        self.wfile.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    def log_message(self, *_):
        """Keep quiet: the screen belongs to the lesson."""


class ModelServer(ThreadingHTTPServer):
    """A running server, with the requests it accepted and those it refused."""

    request_queue_size = BACKLOG
    allow_reuse_address = os.name != "nt"       # Windows would let two servers share a port

    def __init__(self, policy, port):
        self.policy = policy
        self.requests = []          # bodies, in order of arrival
        self.refusals = []          # (status, message)
        self.connections = set()    # sockets of the clients that are here
        super().__init__(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def play(self, request):
        """The policy's answer; a policy that fails is a failing API, and the server lives on."""
        try:
            answer = self.policy(request)
            return answer if isinstance(answer, Raw) else Raw.of(whole_message(answer, request))
        except ApiError as error:
            return error.raw()
        except Exception as error:
            return ApiError(500, "api_error", f"{type(error).__name__}: {error}").raw()

    def server_bind(self):
        """Bind the port without asking for the host's name, which takes seconds on some machines."""
        socketserver.TCPServer.server_bind(self)

    def process_request(self, connection, address):
        """Remember a client that has come."""
        self.connections.add(connection)
        super().process_request(connection, address)

    def shutdown_request(self, connection):
        """Forget a client that has gone."""
        self.connections.discard(connection)
        super().shutdown_request(connection)

    def handle_error(self, connection, address):
        """Report what failed in a thread, unless it is a client that left early."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(connection, address)

    def close(self):
        """End at once: the port is free, the clients are cut off."""
        self.shutdown()
        self.server_close()
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def __exit__(self, *_):
        self.close()


def serve(policy, port=0):
    """A server that answers by this policy, already running; port 0 takes any free one."""
    try:
        server = ModelServer(policy, port)
    except (OSError, OverflowError) as error:
        raise OSError(f"Port {port} cannot be used ({error}); choose another.") from None
    threading.Thread(target=server.serve_forever, args=(CLOSE_WITHIN,), daemon=True).start()
    return server


# ── The player ───────────────────────────────────────────────────────

def player(request):
    """The rule-based policy."""
    return "I am the offline model, a rule-based player and no chat model."


# ── Alone ────────────────────────────────────────────────────────────

def main():
    """Serve the player until Ctrl-C."""
    options = argparse.ArgumentParser(description="A rule-based model that needs no key.")
    options.add_argument("--port", type=int, default=8787)
    try:
        server = serve(player, options.parse_args().port)
    except OSError as error:
        sys.exit(str(error))
    print(f"The offline model listens: ANTHROPIC_BASE_URL={server.url} (Ctrl-C ends it)", flush=True)
    with server, contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(1)       # a wait without end would be deaf to Ctrl-C on Windows


if __name__ == "__main__":
    main()
