"""A model for a learner without a key: it speaks the Messages API, by rules and not by chat.

    serve(policy)      a server on the loopback that refuses what the real API refuses
    player(request)    a policy that plays the lead and the teammates of the lessons

Run it alone with `python tools/offline_model.py --port 8787`. Left out: streaming, server tools.
"""

import argparse
import contextlib
import html
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
from collections import defaultdict
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePath

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
        """Bind the port; HTTPServer would ask for the host's name, which may take seconds."""
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


# ── The player: what a request tells ─────────────────────────────────

MAIL = re.compile(r"<(message|task)\b([^>]*)>(.*?)</\1>", re.DOTALL)
ESCAPED = re.compile(r"&lt;(?=\s*/?\s*(?:message|wrap_up|task)\b)")     # a tag made harmless
WRAP_UP = re.compile(r"<wrap_up\b.*?</wrap_up>", re.DOTALL)
ANSWER = "answer"       # stands in a story where a text ended a turn


@dataclass(frozen=True)
class Mail:
    """Words that reached an agent; the person's have the type "words"."""

    sender: str
    type: str
    text: str
    tags: dict = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Done:
    """A tool call and what came of it."""

    tool: str
    input: dict
    result: str
    failed: bool


def letters(words):
    """The mail and the tasks in a text, then the person's own words."""
    for tag, attributes, content in MAIL.findall(words):
        named = dict(re.findall(r'(\w+)="([^"]*)"', attributes))
        yield Mail(html.unescape(named.get("from", "?")), named.get("type", tag),
                   ESCAPED.sub("<", content).strip(), named)
    if WRAP_UP.search(words):
        yield Mail("", "wrap_up", "")
    if rest := WRAP_UP.sub("", MAIL.sub("", words)).strip():
        yield Mail("", "words", rest)


def done(block, result):
    """The Done of a tool_use block and its tool_result."""
    words = "\n".join(part.get("text", "") for part in as_blocks(result.get("content", "")))
    return Done(block["name"], block["input"], words.removeprefix(f"{block['name']} failed: "),
                result.get("is_error", False) or words.startswith("Error"))


def story_of(request):
    """What has happened to an agent, oldest first: Mail, Done and ANSWER."""
    messages = merged(request["messages"])
    results = {block["tool_use_id"]: block for message in messages for block in message["content"]
               if block["type"] == "tool_result"}
    for message in messages:
        calls = [done(block, results[block["id"]]) for block in message["content"]
                 if block["type"] == "tool_use"]
        for event in calls:
            yield event
            inbox = event.result if event.tool == "check_inbox" else ""
            yield from (mail for mail in letters(inbox) if mail.sender)
        for block in message["content"]:
            if message["role"] == "user" and block["type"] == "text":
                yield from letters(block["text"])
        if message["role"] == "assistant" and not calls:
            yield ANSWER


def calls_of(story, *tools):
    """The calls of these tools in a story."""
    return [event for event in story if isinstance(event, Done) and event.tool in tools]


def last_plans(events):
    """Calls in which a plan that was submitted again stands for those before it."""
    kept = []
    for event in events:
        if kept and all(isinstance(one, Done) and one.tool == "submit_plan"
                        for one in (kept[-1], event)):
            kept.pop()
        kept.append(event)
    return kept


def after_last(story, test):
    """The place behind the last event that passes a test, 0 if none does."""
    return max((n + 1 for n, event in enumerate(story) if test(event)), default=0)


class Scene:
    """Who an agent is, what it was told last and what it has done since."""

    def __init__(self, request):
        system = " ".join(block["text"] for block in as_blocks(request.get("system", [])))
        who = re.search(r"You are '(.+?)',\s+an?\s+([^.\n]+)", system)
        self.name, self.role = who.groups() if who else ("lead", "")
        self.tools = {tool["name"] for tool in request.get("tools", [])}
        self.story = list(story_of(request))
        answered = after_last(self.story, lambda event: event is ANSWER)
        told = after_last(self.story, self.tells) - 1
        self.fresh = self.story[answered:]
        # The person's last words replace those before; what reaches a teammate in mid-turn adds up.
        start = max(told, 0) if self.name == "lead" else answered
        self.before, since = self.story[:start], self.story[start:]
        self.told = [event for event in since if self.tells(event)]
        self.orders = [event.text for event in self.told]
        self.done = last_plans(event for event in since if isinstance(event, Done))
        self.is_new = told >= answered
        self.wraps_up = any(isinstance(event, Mail) and event.type == "wrap_up"
                            for event in self.fresh)
        heard = [event.text for event in self.story if self.tells(event)]
        self.chinese = any(map(is_chinese, self.orders or heard[-1:]))

    def tells(self, event):
        """Whether an event is an order: the person's words, for a teammate a message or a task."""
        types = ["words"] if self.name == "lead" else ["words", "message", "task"]
        return isinstance(event, Mail) and event.type in types

    def say(self, key, /, **fields):
        """A sentence of PHRASES in the language of the orders."""
        return PHRASES[key][self.chinese].format_map(defaultdict(str, fields))


# ── The player: how words are read ───────────────────────────────────

CJK = "[\u4e00-\u9fff]"
Q = "[\"'`“”‘’「」]?"
QUOTED = re.compile(r"`[^`\n]+`|\"[^\"\n]+\"|“[^”\n]+”|‘[^’\n]+’|「[^」\n]+」"
                    r"|(?<!\w)'[^'\n]+'(?!\w)")
NAMED = re.compile(r"\b(?:spawn|ask|tell|let|have|called|named|and|from|for) (?u:[\w-]+)",
                   re.IGNORECASE | re.ASCII)
SENTENCE_END = re.compile(r"[.!?;]+\s+|(?:[。；！？]\s*)+|\n+")
JOINT = re.compile(r"[.!?;,]+\s+|(?:[，。；！？、,]\s*)+|\n+|\s+(?=(?:and|then)\b)"
                   r"|\s*(?=然后|接着|随后|再|并|同时)", re.IGNORECASE | re.ASCII)
TAIL = re.compile(r"(?:(?<![./\s])[.!?,;]|[。！？，；\s])+$")
QUESTION = re.compile(r"^(?:what|who|where|when|why|how|which|is|are|do|does|did|has)\b"
                      r"|吗$|呢$|什么|谁|怎么|哪|几", re.IGNORECASE | re.ASCII)
POLITE = (r"(?:please|then|now|and|also|next|first|finally|so|ok|okay|(?:can|could|would|will) you"
          r"|i want you to|i(?:'d| would) like you to|tell me|show me|try to|hi|hello|hey|thanks)\b"
          r"|[\s,，.。!！]++|你好|谢谢|请问|请"
          r"|麻烦|帮我|帮忙|你|能不能|能否|可以|现在|先|再|然后|接着|随后|最后|同时|并且|并|也|告诉我")

WHO = rf"{Q}(?P<who>(?!(?:me|us|you|it|the|an?|your|my|this|that)\b)(?u:[\w-]+)){Q}"
WHOM = (WHO.removesuffix(f"){Q}") +                  # or several
        rf"(?:(?:\s*,\s*|\s*,?\s+and\s+)(?u:[\w-]+))*?){Q}")
TASK = "(?P<task>.+)"
VERBS = "看读写创新建运执跑检查列打添加确把在用修改给介发留说去来关停收下提先"     # a Chinese name ends before one
MANY = r"(?P<who>(?u:[\w-]+)(?:\s*,\s*(?u:[\w-]+))*\s+and\s+(?u:[\w-]+))"
ZH_NAME = rf"(?:[A-Za-z][\w-]*|{CJK}{{1,4}}?)"
ZH_MANY = rf"(?P<who>{ZH_NAME}(?:\s*[、和与]\s*{ZH_NAME})+)(?=\s*[\s：:，,{VERBS}])"
ZH_WHO = (rf"{Q}(?P<who>[她他它]们?|大家|所有人|[A-Za-z][\w-]*(?![\w.])"
          rf"|(?![我你她他需必{VERBS}]){CJK}{{1,4}}?(?={Q}[\s：:，,{VERBS}])){Q}")
ZH_WHOM = (rf"{Q}(?!求|工作|任务)(?P<who>[她他它]们?|大家|所有人|全部|全体|{ZH_NAME}(?:\s*[、和与]\s*{ZH_NAME})*){Q}"
           r"\s*(?:全?都|也|先)?\s*")                  # in front of what they shall do, and no more
ONE = {"her", "him", "his", "she", "he", "她", "他", "它"}
ALL = {"them", "they", "their", "both", "everyone", "all", "team", "她们", "他们", "它们", "大家",
       "所有人", "全部", "全体"}
ROLE = (r"(?:\s+as\s+|\s*[,，]?\s*(?:role\b\s*(?:is|of|:)?|in\s+the\s+role\s+of|角色\s*[是为：:]?"
        r"|身份[是为]|担任|作为|来?当|来?做|[(（]|的)\s*)(?:(?:an?|the|our|my)\s+|一[名个位]\s*)?"
        rf"{Q}(?P<role>[^.,;:!?，。；：！？、()（）\n]+?){Q}"
        r"(?=\s*(?:[.,;:!?，。；：！？、()（）\n]|$|(?:and|to|who|with|please)\b|(?:和|以及)))[)）]?")
PERSON = re.compile(
    rf"(?:[\s,，、]|\band\b|和|以及)*{Q}(?P<name>(?!please\b)(?u:[\w-]){{1,32}}?){Q}"
    rf"(?:{ROLE}|(?=\s*(?:$|[.,;:!?，。；：！？、]|和)|\s+(?:and|to|with|who)\b)|(?<=\w)(?=\s+{CJK})"
    r"|(?=去|来|负责))",
    re.I | re.A)
PATH = r"(?:[\w.-]*[/\\])+[\w.-]*\w|\w[\w-]*(?:\.[\w-]+)*\.[A-Za-z]\w*"
FILES = [re.compile(pattern, re.IGNORECASE | re.ASCII) for pattern in (    # the surest form first
    rf"\b(?:file|script)\s+(?:called|named)\s+{Q}([^\s\"'`“”，。,;]+?)(?=\.?(?:[\s\"'`”,;，。]|$))",
    rf"(?:名为|叫做?|命名为)\s*{Q}([^\s\"'`“”，。,;]+?){Q}\s*的?\s*(?:文件|脚本)",
    rf"(?:\b(?:to|into|in|as)\s+|[到进入为]\s*){Q}({PATH})",
    r"[`\"'“‘「]([^`\"'”’」\n]*[^\s`\"'”’」]\.\w{1,8})[`\"'”’」]",
    rf"({PATH})")]
IT = re.compile(r"\b(?:it|its|the file|contents?)\b|它|内容|这个文件|该文件", re.I | re.A)


def is_chinese(words):
    """Whether words are Chinese, quotes and names aside."""
    return re.search(CJK, NAMED.sub("", QUOTED.sub("", words))) is not None


def split(words, joint, rows):
    """The pieces of an order: it is cut at a joint after which something of the rows begins."""
    masked = QUOTED.sub(lambda quote: "_" * len(quote[0]), words)
    pieces, start = [], 0
    for gap in joint.finditer(masked):
        if any(row.match(words, gap.end()) for row in rows):
            pieces.append(words[start:gap.start()])
            start = gap.end()
    return [*pieces, words[start:]]


def polished(words, chinese):
    """Words as a sentence of their own."""
    words = TAIL.sub("", words.replace(ITEM, "; ")).lstrip()
    if QUOTED.fullmatch(words) and words[0] != "`":
        words = words[1:-1]
    if not chinese and not re.match(PATH, words, re.ASCII):
        words = words[:1].upper() + words[1:]
    is_question = QUESTION.search(words) is not None
    return words + [[".", "?"], ["。", "？"]][chinese][is_question]


class Intent:
    """A row: what somebody may want, how it is said in both languages, which blocks it asks for.

    The maker gets the match and the Reading; None means that it was not meant after all.
    """

    def __init__(self, english, chinese, maker):
        self.forms = [re.compile(rf"(?:{POLITE})*(?:{form})", re.I | re.A | re.S)
                      for form in (english, chinese)]
        self.maker = maker

    def match(self, words, start=0):
        """The match of one of the forms at a place."""
        return next((m for form in self.forms if (m := form.match(words, start))), None)

    def search(self, words):
        """The same anywhere in the words."""
        return next((m for form in self.forms if (m := form.search(words))), None)


class Reading:
    """What an agent makes of its orders: the blocks they ask for, and what stays unclear."""

    def __init__(self, scene):
        self.scene, self.blocks, self.unclear, self.spawned = scene, [], [], []
        self.listing = False        # whether the words that follow are tasks for the board
        self.list_role = None       # who alone may take a task of the list
        self.on_board = {id for done in calls_of(scene.before, "create_task")
                         for id in TASK_ID.findall(done.result)}
        self.names = [str(done.input.get("name") or done.input.get("to"))
                      for done in calls_of(scene.before, "spawn_teammate", "send_message")]
        self.file = next((str(done.input.get("path")) for done in
                          reversed(calls_of(scene.before, "read_file", "write_file"))), None)
        for event in scene.told:
            self.order = event.text
            done, unclear = len(self.blocks), len(self.unclear)
            self.read(event.text)
            if event.type == "task":
                understood = len(self.blocks) > done and len(self.unclear) == unclear
                self.blocks.append(call("complete_task" if understood else "release_task",
                                        task_id=event.tags["id"]))

    def read(self, order):
        """Read an order piece by piece; to the lead, what it tells a teammate is one piece."""
        if self.scene.name != "lead":
            if not (TASKS[0].match(order) and self.obey(as_list(order), TASKS)):
                self.obey_pieces(order, TEAMMATE)
            return
        order = as_list(order)
        for sentence in split(order, SENTENCE_END, LEAD + WORK):
            for piece in split(sentence, JOINT, LEAD):
                if any(row.match(piece) for row in LEAD):
                    self.listing = False
                if self.listing:
                    put_on_board(piece, self)
                elif not self.obey(piece, [*LEAD, ADDRESS]):
                    self.obey_pieces(piece, WORK)

    def obey_pieces(self, words, rows):
        """Read work for the agent itself."""
        for piece in split(words, JOINT, rows):
            if not self.obey(piece, rows):
                self.unclear.append(piece.strip())

    def obey(self, piece, rows):
        """Add the blocks of the first row that fits; False if none does."""
        for row in rows:
            match = row.match(piece)
            blocks = row.maker(match, self) if match else None
            if blocks is not None:
                self.blocks += [block for block in blocks if block not in self.blocks[-1:]]
                return True
        return False

    def not_understood(self):
        """The sentences that say so."""
        if self.unclear and not self.blocks:
            keys = ["help lead" if self.scene.name == "lead" else "help teammate"]
            keys += ["help board"] if {"create_task", "spawn_teammate"} <= self.scene.tools else []
            return ["\n".join(map(self.scene.say, keys))]
        return [self.scene.say("unclear", words=words) for words in self.unclear
                if not re.fullmatch(rf"(?:{POLITE})*", words, re.I | re.A)]

    def people(self, who):
        """The names that a name or a pronoun stands for."""
        if who.lower() in ALL:
            return self.spawned or list(dict.fromkeys(self.names))
        if who.lower() in ONE:
            return self.names[-1:]
        named = [next((name for name in self.names if name.lower() == one.lower()), one)
                 for one in re.split(r"\s*[,、和与]\s*|\s+and\s+", who)]
        self.names += [name for name in named if name in self.names]     # "her" is the last named
        return named

    def find_file(self, words):
        """The file that words name, or the last one where they say "it"."""
        found = next((m[1] for form in FILES if (m := form.search(words))), None)
        self.file = found or self.file
        return found or (self.file if IT.search(words) else None)


# ── The player: what an order asks for ───────────────────────────────

def spawn(match, reading):
    """Several teammates, with what they shall do if the same clause says it."""
    clause, at, calls = match.string, match.end(), []
    if "name" in match.groupdict():                 # the role stood before the name
        calls.append(new_teammate(match, reading))
    while not (calls and (any(row.match(clause, at) for row in WORK)
                          or re.match("去|来|负责", clause[at:]))) and (
            person := PERSON.match(clause, at)):
        at = person.end()
        calls.append(new_teammate(person, reading))
    share_role(calls, reading)
    rest = re.sub(r"^[\s,，]*(?:and|to|who should|来|去|负责)?\s*", "", clause[at:])
    if calls and (task := JOB.match(rest)):
        calls[-1]["input"]["prompt"] = reading.scene.say("job", task=task["task"].strip())
    elif calls and (re.match(r"[\s,，]*(?:to|who should)\s", clause[at:])
                    or any(row.match(rest) for row in [PLAN, *WORK])):
        calls[-1]["input"]["prompt"] = polished(rest, reading.scene.chinese)
    return calls or None


def share_role(calls, reading):
    """Give the role to all in "alice and bob as testers"."""
    roles = [block["input"]["role"] for block in calls]
    others = set(roles[:-1])
    if others == {reading.scene.say("role")} and (
            roles[-1].endswith("s") or is_chinese(roles[-1])):
        for block in calls:
            block["input"]["role"] = roles[-1].removesuffix("s")


def new_teammate(match, reading):
    """The call that spawns the one whom a match names."""
    reading.names.append(match["name"])
    reading.spawned.append(match["name"])
    say, role = reading.scene.say, match["role"] or ""
    if job := re.fullmatch(r"(?P<task>.+?)\s*任务", role):       # 做重构任务: a task, not a role
        return call("spawn_teammate", name=match["name"], role=say("role"),
                    prompt=say("job", task=job["task"]))
    return call("spawn_teammate", name=match["name"], role=role or say("role"), prompt=say("wait"))


def tell(match, reading):
    """A message, or the first task of one whom these orders spawn."""
    task = polished(match["task"], reading.scene.chinese)
    names = reading.people(match["who"])
    return [message for name in names for message in hand_over(name, task, reading)
            ] if names else None


def address(match, reading):
    """The same for "alice, do this", if somebody is called so."""
    known = [name.lower() for name in reading.names]
    return tell(match, reading) if match["who"].lower() in known else None


def demand(match, reading):
    """A plan asked of the one who was named last."""
    names, task = reading.people("her"), reading.scene.say("plan first")
    return [block for name in names for block in hand_over(name, task, reading)] if names else None


def hand_over(name, task, reading):
    """The call that brings somebody a task; none if the call that spawns it can."""
    wants_plan = "request_plan" in reading.scene.tools and PLAN.match(task) is not None
    for block in reading.blocks:
        given = block.get("input", {})
        if given.get("name") == name and block["name"] == "spawn_teammate":
            if given["prompt"] == reading.scene.say("wait"):
                given["prompt"] = task
            elif wants_plan:
                given["prompt"] = f"{task} {given['prompt']}"
            else:
                break
            given.update({"plan_required": True} if wants_plan else {})
            return []
    if reading.spawned and name not in reading.names:       # "spawn alice, and let bob ..."
        reading.names.append(name)
        plan = {"plan_required": True} if wants_plan else {}
        return [call("spawn_teammate", name=name, role=reading.scene.say("role"), prompt=task,
                     **plan)]
    if wants_plan:
        return [call("request_plan", teammate=name, task=task)]
    return [call("send_message", to=name, content=task)]


def run(match, reading):
    """A command: what stands in quotes, otherwise the rest of the clause."""
    rest = match.string[match.end():].strip()
    if quoted := QUOTED.match(rest):
        return [call("bash", command=quoted[0][1:-1])]
    plain = re.match(r"[ -~]*", rest)[0]
    command = TAIL.sub("", re.sub(r"\bplease\b\W*$", "", plain))
    if re.match(r"(?:it|this|that)\b", command) and str(reading.file).endswith(".py"):
        return [call("bash", command=f"python {reading.file}")]
    vague = re.match(r"$|(?:an?|the|all|your|some|it)\b", command)
    return None if vague else [call("bash", command=command)]


def list_files(match, reading):
    """The command that lists files."""
    return [call("bash", command="ls")]


def read(match, reading):
    """A look into the file that is named, or into each of several."""
    path = reading.find_file(match.string)
    several = FILES[-1].findall(match.string)
    paths = several if len(several) > 1 else [path] if path else []
    return [call("read_file", path=path) for path in paths] or None


def write(match, reading):
    """A new file, whose name may have to be guessed."""
    clause = match.string
    if IT.search(clause) and reading.file and not any(form.search(clause) for form in FILES):
        return add(match, reading)
    path = reading.find_file(clause) or next(
        (name for noun, name in USUAL_NAMES if re.search(noun, clause, re.I | re.A)), None)
    reading.file = path or reading.file
    return [call("write_file", path=path, content=content_for(path, clause))] if path else None


def add(match, reading):
    """More in a file that is there: it is read first and then written whole."""
    path = reading.find_file(match.string) or reading.file
    if not path or path.endswith(".json"):
        return None
    last = (reading.blocks or [{}])[-1].get("input", {})
    if "content" in last and last.get("path") == path:          # the order has just created it
        last["content"] = content_for(path, reading.order)
        return []
    old = known_content(path, reading.scene)
    return [call("read_file", path=path),
            call("write_file", path=path,
                 content=f"{old.rstrip()}\n\n{content_for(path, match.string)}")]


def known_content(path, scene):
    """What stands in a file as far as the agent has seen."""
    for done in reversed(calls_of(scene.story, "read_file", "write_file")):
        if done.input.get("path") == path and not done.failed:
            return done.result if done.tool == "read_file" else done.input["content"]
    return ""


def investigate(match, reading):
    """Notes on what was asked; the player does not pretend to have found anything."""
    return [call("write_file", path="findings.md",
                 content=f"# findings\n\n{TAIL.sub('', match.string)}\n\n"
                         + reading.scene.say("written", stem="findings") + "\n")]


def plan(match, reading):
    """A plan, and the work that needs it if the order names no other."""
    title, rationale, *steps = plan_lines(reading)
    submitted = call("submit_plan", title=title, steps=steps, rationale=rationale)
    rest = reading.order[reading.order.find(match.string) + len(match.string):]
    others = any(row.match(piece) for piece in split(rest, JOINT, WORK) for row in WORK)
    return [submitted] + ([] if others else job(match, reading))


def job(match, reading):
    """A task that is named and not described: the player writes a note of its steps."""
    title, _, *steps = plan_lines(reading)
    for done in calls_of(reading.scene.done, "submit_plan"):
        steps = done.input["steps"]                  # as they were approved
    notes = "\n".join([f"# {title}", "", *(f"- {step}" for step in steps)])
    return [call("write_file", path=f"{kind_of(reading)}.md", content=f"{notes}\n")]


def kind_of(reading):
    return "refactoring" if re.search("refactor|重构", reading.order, re.IGNORECASE) else "task"


def plan_lines(reading):
    """A title, a rationale and the steps."""
    work = [piece for piece in split(reading.order, JOINT, [PLAN, *WORK])
            if not PLAN.match(piece) and any(row.match(piece) for row in WORK)]
    title = TAIL.sub("", polished(work[0], reading.scene.chinese)) if work else ""
    return reading.scene.say(f"plan {kind_of(reading)}", title=title or reading.scene.say(
        "a task")).split("\n")


def shut_down(match, reading):
    """A request to stop for each of those who are meant."""
    who = match.groupdict().get("who") or "her"
    return [call("request_shutdown", teammate=name) for name in reading.people(who)] or None


def review(match, reading):
    """A decision; which plan it decides is known when the plan has come."""
    verdict = match.groupdict().get("verdict")
    if not verdict:
        return []
    approve = verdict.lower() in ("approve", "accept", "批准", "通过", "同意")
    why = TAIL.sub("", match["why"] or "")
    words = match.string.removesuffix(match["why"] or "")
    named = [name for name in reading.names if name in words] or reading.people("her") or [""]
    return [call("review_plan", who=named[-1], approve=approve, feedback=why)]


def answer(key):
    """The maker of an answer in words."""
    return lambda match, reading: [text(reading.scene.say(
        key, name=reading.scene.name, role=reading.scene.role))]


def use(tool):
    """The maker of a call without arguments."""
    return lambda match, reading: [call(tool)]


# ── The player: tasks for the board ──────────────────────────────────

BOARD = r"(?:task\s+)?board\b", "(?:任务板|任务看板|看板|面板|板)[上里]?"
NUMBERS = {word: place // 3 + 1 for place, word in enumerate(
    "one first 一 two second 二 three third 三 four fourth 四 five fifth 五 six sixth 六".split())}
NUMBER = rf"(?:\d{{1,3}}|{'|'.join(NUMBERS)})"
ITEM = "\x1f"                   # stands between the tasks of a list
LIST_END = re.compile(r"[.!?](?:\s|$)|[。！？]|\n\n")
ITEM_GAP = re.compile(r"\s*[;；\n]\s*(?:[-*•]\s+)?")
TOPIC = re.compile(r"[^:：;；.。\n]{0,60}[:：]")       # "for the new API:", in front of a list
NUMBERED_GAP = re.compile(r"[\s;；]*(?<![\w.])\(?\d{1,2}[.)、]\s*", re.ASCII)     # 1. … 2. …
NOUN_GAP = re.compile(r"\s*[,，、]\s*(?:and\s+)?|\s+and\s+|[和与]", re.IGNORECASE)
THEN = re.compile(r"(?:[\s,;，。；]|and\b)*then\b|[\s，。；]*(?:然后|接着|随后|再)", re.IGNORECASE)
BEFORE_IT = re.compile(       # what has to be done first, where it may stand before the task
    r"[\s,(]*\b(?:after|once|as\s+soon\s+as|depend(?:s|ing)\s+on|needs|waits\s+for)\s+"
    r"(?P<en>[^,;:()]+)\)?"
    r"|(?:[在等])?\s*(?P<zh>[^，。；：（）]{1,24}?)\s*(?:(?:完成|做完|[写建做]?好)了?之?以?后|[之以]后)"
    r"[，,]?\s*再?", re.I | re.A)
AFTER = re.compile(rf"{BEFORE_IT.pattern}|[（(，,]?\s*(?:依赖|需要?先完成|先完成)\s*"
                   r"(?P<need>[^，。；（）()]+)[）)]?", re.I | re.A)
ROLES = "tester|coder|programmer|developer|dev|engineer|writer|reviewer|designer|analyst|researcher"
ZH_ROLES = "(?:测试|后端|前端|开发|设计|评审|审查|运维|文档)(?:员|师|工程师|人员|者)?"
FOR_ROLE = re.compile(
    rf"[\s,]*(?:\b(?:for|by)\s+(?:an?|the)|\(\s*(?:role)?|\brole|\bonly\s+(?:an?|the))\s*:?"
    rf"\s*(?P<en>(?:[\w-]+\s+)?(?:{ROLES}))\b(?:\s+(?:only|(?:may|can|should)\b[^,.;:]*))?"
    r"\s*\)?\s*:?"
    rf"|[\s，,]*(?:[（(]|只?能?(?:由|给|交给)|角色[是为]?[：:]?)\s*(?:只?能?由)?(?P<zh>{ZH_ROLES})"
    r"(?:来?[做完]成?)?\s*[）)]?[：:]?", re.IGNORECASE)
NO_SIGNS = {"is", "are", "be", "done", "ready", "finished", "task", "file", "create", "write", "of",
            "called", "in", "on", "to", "for", *"的写创建在了一个文件任务好"}


def create_tasks(match, reading):
    """Tasks for the board: those that the words name, otherwise as many as they say."""
    rest = match.string[match.end():]
    topic = TOPIC.match(rest)
    reading.list_role = FOR_ROLE.search(topic[0]) if topic else None
    rest = re.sub(r"^[\s:：，,]*(?:to\b)?", "", rest[topic.end():] if topic else rest)
    if TAIL.sub("", rest).strip(ITEM):
        reading.listing = True
        put_on_board(rest, reading)
        return []
    number = (match["number"] or "3").lower()
    number = {"a": 1, "an": 1, "两": 2, **NUMBERS}.get(number) or int(number)
    for n in range(1, number + 1):
        key = f"task {n}"
        put_on_board(reading.scene.say(key if key in PHRASES else "task", n=n), reading)
    return []


def as_list(order):
    """An order with one sign between the tasks of a list, so that nothing else cuts it there."""
    if not (match := TASKS[0].search(order)):
        return order
    rest = order[match.end():]
    if re.match(r"[\s:：]*\(?1[.)、]", rest):
        rest = NUMBERED_GAP.sub(ITEM, rest)
    end = LIST_END.search(rest)
    end = end.start() if end else len(rest)
    return order[:match.end()] + ITEM_GAP.sub(ITEM, rest[:end]) + rest[end:]


def put_on_board(words, reading):
    """A create_task for each task of a list, but where the list goes over into other orders."""
    for chunk in filter(str.strip, words.split(ITEM)):
        if any(row.maker in (spawn, shut_down) and row.match(chunk) for row in LEAD):
            reading.obey(chunk, LEAD)
        elif any(row.match(item) for item in split(chunk, JOINT, WORK) for row in WORK):
            add_tasks(split(chunk, JOINT, [*WORK, BEFORE_IT]), reading)
        else:                                           # "schema, config and tests"
            nouns = NOUN_GAP.split(TAIL.sub("", chunk)) if ITEM not in words else [chunk]
            add_tasks([as_work(noun, reading) for noun in nouns] if len(nouns) > 1 else nouns,
                      reading)


def as_work(noun, reading):
    """A task of which only the result is named."""
    then = THEN.match(noun)
    start = then.end() if then else 0
    return noun[:start] + " " + reading.scene.say("write it", words=noun[start:].strip())


def add_tasks(items, reading):
    """The calls for these tasks; what a task waits for may stand before it as an item."""
    waits, new = [], len(reading.blocks)
    for item in items:
        role, words = FOR_ROLE.search(item), FOR_ROLE.sub("", item)
        waits += [TAIL.sub("", found[found.lastgroup]) for found in AFTER.finditer(words)]
        words = AFTER.sub("", words)
        if not re.fullmatch(rf"(?:{POLITE}|[;:；：、])*", words, re.I | re.A):
            reading.blocks.append(new_task(words, role, waits, reading))
            waits = []
    if waits and len(reading.blocks) > new:             # "write d.txt, after c.md"
        last = reading.blocks.pop()
        last["input"].update(blocked_by=places(waits, reading))
        reading.blocks.append(last)


def new_task(words, role, waits, reading):
    """The call that creates a task."""
    blockers = places(waits or (["that"] if THEN.match(words) else []), reading)
    words = re.sub(rf"^(?:{POLITE})*", "", words, flags=re.I | re.A)
    return call("create_task", subject=TAIL.sub("", polished(words, is_chinese(words))),
                **({"blocked_by": blockers} if blockers else {}),
                **({"required_role": role[role.lastgroup]}
                   if (role := role or reading.list_role) else {}))


def places(waits, reading):
    """What words name as blockers: the place of a new task, or the id of one on the board."""
    tasks = [block["input"]["subject"] for block in reading.blocks
             if block.get("name") == "create_task"]
    found = []
    for part in (part for words in waits for part in re.split(r"\s+and\s+|[,，、和]", words)):
        number = re.search(rf"(?:task|item|number|step|[#第]|任务)\s*({NUMBER})(?![\w.])"
                           rf"|^\s*(?:the\s+)?({NUMBER})\s*[个项]?(?:task|item|任务)?\s*$",
                           part, re.I | re.A)
        shared = [len(tokens(part) & tokens(task)) for task in tasks]
        if re.search(r"\b(?:all|both|everything|them)\b|都|全部|所有", part, re.I | re.A):
            found += range(len(tasks))
        elif number:
            number = number[number.lastindex].lower()
            number = NUMBERS.get(number) or int(number)
            new = 0 < number <= len(tasks) and str(number) not in reading.on_board
            found.append(number - 1 if new else str(number))
        elif any(shared):
            found.append(shared.index(max(shared)))
        elif tasks and re.search(r"\b(?:that|this|it)\b|它|这|那", part, re.I | re.A):
            found.append(len(tasks) - 1)
        else:
            reading.unclear.append(part)
    return found


def tokens(words):
    """The words and signs by which a task is known."""
    return set(re.findall(rf"[a-z0-9]+|{CJK}", words.lower())) - NO_NAMES - NO_SIGNS


def with_id(tool):
    """The maker of a call about the task that the words name."""
    return lambda match, reading: [call(tool, task_id=match["id"])]


TASKS = [
    Intent(rf"(?:create|add|put|make|post|write)\s+(?:(?P<number>{NUMBER}|an?)\s+)?"
           rf"(?:(?:some|new|small)\s+)*tasks?\b(?:\s+(?:on|to|onto)\s+(?:the|our)\s+{BOARD[0]})?"
           r"(?:\s+with\s+dependencies)?"
           rf"|(?:put|add)\s+(?:these|this|the\s+following)\s+(?:on|to)\s+(?:the|our)\s+{BOARD[0]}",
           rf"(?:[在往向]?{BOARD[1]})?\s*(?:创建|新建|添加|发布|建|放|写)[上下出]?\s*"
           rf"(?P<number>{NUMBER}|两)?\s*[个项条]?(?:新的?|小)?任务(?!板)"
           rf"(?:\s*(?:放?[到在])?{BOARD[1]})?", create_tasks),
    Intent(r"(?:watch|observe|see)\s+(?:how\s+)?(?u:[\w-]+(?:\s+and\s+[\w-]+)?)\s+(?:auto\W?)?"
           r"(?:claim|work|pick)\b.*|let\s+(?:them|everyone)\s+(?:auto\W?)?(?:claim|pick)\b.*",
           r"(?:看着?|观察|看看|让)(?:一下)?\s*(?:[她他它]们?|大家)?\s*(?:怎么|如何|自己|自动|主动)*\s*"
           r"(?:认领|领取|抢任务|干活|工作).*", lambda match, reading: []),
    Intent(r"(?:show|read|get|look\s+at)\s+(?:me\s+)?task\s+#?(?P<id>\w+)",
           r"(?:看看?|查看|显示)\s*任务\s*#?(?P<id>\d+)", with_id("get_task")),
    Intent(rf"(?:show|list|look|check|see|what(?:'s|\s+is|\s+are)?)\s+"
           rf"(?:(?:me|on|at|all|the|our)\s+)*(?:{BOARD[0]}|tasks\b)|tasks[.!?\s]*$",
           rf"(?:看看|查看|显示|列出|看)(?:一下|所有|当前|的|\s)*(?:{BOARD[1]}|任务)"
           rf"|{BOARD[1]}\s*(?:现在)?有(?:什么|哪些|几)", use("list_tasks")),
    Intent(r"(?:release|give\s+back|put\s+back)\s+task\s+#?(?P<id>\w+)",
           r"(?:释放|放回|归还|退回)\s*任务\s*#?(?P<id>\w+)", with_id("release_task")),
    Intent(r"(?:claim|take)\s+task\s+#?(?P<id>\w+)",
           r"(?:认领|领取|接)\s*任务\s*#?(?P<id>\w+)", with_id("claim_task")),
]


# ── The player: all that an order may ask for ────────────────────────

PLAN = Intent(
    r"(?:submit|propose|make|write|draft|prepare|present|give|hand\s+in|come\s+up\s+with)\s+"
    r"(?:(?:me|us|an?|the|your|his|her|\w+ing)\s+)*plan\b",
    r"(?:根据|基于)?[^，。]{0,16}?(?:提交|提出|提|编写|写|给出|拿出|制定|做)(?:一?[个份])?[^，。]{0,10}?(?:计划|方案)",
    plan)
JOB = re.compile(r"(?:with|for|on|to\s+do)\s+(?:an?|the)\s+(?P<task>[\w -]+?)\s+(?:task|job)\b",
                 re.IGNORECASE)

SHUT_DOWN, GUAN_JI = r"shut\s?-?down|stop|dismiss", "关机|关[停掉]|停机|收工|下班|停止工作|停[掉下]来?"
TALK = [
    Intent(r"who(?:'s|\s+is|\s+are)?\b[^.]{0,40}\b(?:team|here|teammates?|there|working)\b"
           r"|(?:list|show)\s+(?:(?:me|the|all|your|our|my)\s+)*(?:team\b|teammates|members)"
           r"|(?:what|how)(?:'s|\s+is|\s+are)\s+[^.?]{1,40}\s(?:doing|up\s+to|working\s+on)\b",
           r"(?:团队|队伍|队|小组)(?:里|中|上)?(?:现在|目前|都|一共)*有(?:谁|哪|几|什么|多少)"
           r"|(?:列出|查看|看看|显示)(?:一下|所有|全部|当前|现在|的|\s)*(?:队友|团队|成员|队员)"
           r"|有(?:哪些|几个|什么|多少)(?:队友|成员|队员)|都?有?谁在(?:团队|队|干活|工作)"
           r"|[^，。]{1,12}?在(?:忙|做|干)(?:些|点)?(?:什么|啥|吗|嘛)",
           use("list_teammates")),
    Intent(rf"(?:ask|tell|have|let|get)\s+{MANY}\s+(?:to\s+)?{TASK}",
           rf"(?:让|请|叫|告诉|通知|要求)\s*{ZH_MANY}\s*(?:去|来)?[\s：:，,]*{TASK}", tell),
    Intent(rf"(?:ask|tell|have|let|get|instruct|order)\s+{WHO}(?:\s+(?:to|that)\b)?[\s:：,，]+{TASK}",
           rf"(?:让|请|叫|告诉|通知|要求|派(?!生)|安排|吩咐)\s*{ZH_WHO}\s*(?:说|去|来|帮忙)?[\s：:，,]*{TASK}",
           tell),
    Intent(rf"(?:send\s+(?:a\s+message\s+to\s+)?|message\s+){WHO}(?:\s+a\s+message)?"
           rf"(?:\s*[:：,，]|\s+saying|\s+that)\s*{TASK}",
           rf"[给向跟对]\s*{ZH_WHO}\s*(?:发(?:一?[条个])?(?:消息|信息)|留言|说)说?[\s：:，,]*{TASK}",
           tell),
]
WORK = [
    Intent(r"(?:do|carry\s+out|work\s+on|start|begin)\b[^.]*\b(?:task|job|refactoring|work)\b"
           r"|(?:refactor|clean\s+up|rework)\b",
           r"(?:做|完成|开始|执行)[^，。]*(?:任务|重构)|重构|整理", job),
    Intent(r"(?:run|execute)\b(?:\s+(?:the\s+)?(?:shell\s+)?(?:command|script))?\s*[:：]?",
           r"(?:运行|执行|跑)(?:一下|下)?\s*(?:这个|这条|下面的)?(?:命令|指令|脚本)?\s*[：:]?", run),
    Intent(r"(?:list|show|what|which)\s+(?:(?:the|all|are|our|your)\s+)*files\b",
           r"(?:列出|看看|查看|显示)(?:一下|所有|全部|当前|有哪些|有什么|的|\s)*文件(?!内容|的内容)",
           list_files),
    Intent(r"(?:add|append|insert|include|update|extend)\b"
           r"(?!\s+(?:a\s+)?(?:new\s+)?(?:file|teammate))",
           r"(?:[在给往向][^，。]{0,40}?)?(?:添加|增加|加上|加入|追加|补充|补上|加|更新)"
           r"(?!.{0,4}文件)", add),
    Intent(r"(?:create|write|make|add|generate|save|prepare|draft|put)\b",
           r"(?:创建|新建|建立|建(?=[一个好张]|\s)|编写|写|生成|保存|起草|做|添加|把[^，。]{0,40}?写)", write),
    Intent(r"(?:investigate|research|study|explore|analy[sz]e|look\s+into)\b(?![^.]*\w\.\w)",
           r"(?:调查|研究|分析|了解|深入)", investigate),
    Intent(r"(?:read|open|show|view|print|display|inspect|examine|review|look|(?:take|have)"
           r"\s+a\s+look|check|see|list|cat|verify|find\s+out|confirm|what|is|does|whether|if)\b",
           r"(?:读取|阅读|读|查看|看|打开|检查|确认|显示|列出|打印|查|验证|审查|把[^，。]{0,40}?列)",
           read),
]
LEAD = [
    Intent(r"(?:check|read|look\s+(?:at|in|into|through)|see|open)\s+"
           r"(?:(?:your|the|my|our|for|new|any)\s+)*(?:inbox|mail(?:box)?|messages?)\b"
           r"|(?:is|are)\s+there\s+(?:(?:any|new)\s+)*(?:mail|messages?|news|results?|answers?)\b"
           r"|any\s+(?:news|mail|messages?|results?|word)\b"
           r"|(?:what\s+(?:did|has)|has|did)\s+\S+\s+(?:say|said|report|answer|repl|finish|write)",
           r"(?:(?:看看|看下|看一下|看|查看|检查|查收|查|打开|读)(?:一下|下|你的|自己的|\s)*)?收件箱"
           r"|(?:有没有|有|看看|查看|检查|查收)[^，。]{0,16}?(?:新消息|消息|来信|邮件|回复|汇报|的结果)"
           r"|\S{1,16}?\s*(?:说了什么|报告了什么|有结果了吗|有消息吗|完成了吗|回复了吗)",
           use("check_inbox")),
    Intent(rf"(?:spawn|hire|recruit|launch)\s+(?:an?|another|the)\s+(?!new\b|teammate|agent|member)"
           rf"(?P<role>[\w -]+?)\s+(?:called|named)\s+{Q}(?P<name>(?u:[\w-]+)){Q}",
           rf"(?:派生|招募)(?:一[个名位]|[个名位])(?!新|队友|成员|叫|名)(?P<role>{CJK}{{2,10}}?)"
           rf"[\s，,]*(?:名叫|叫做?|名字是)?\s*{Q}(?P<name>[A-Za-z][\w-]*){Q}", spawn),
    Intent(r"(?:spawn|hire|recruit|launch"
           r"|(?:create|start|add|make)(?=[^.]{0,20}?\b(?:teammates?|agents?|members?)\b))"
           r"(?:\s+(?:an?|another|the|one|two|three|new|teammates?|agents?|members?|called|named)\b"
           r"|:)*",
           r"(?:派生|招募|(?:创建|新建|新增|添加|增加|启动|加)(?=[^，。]{0,6}(?:队友|成员|智能体|助手)))"
           r"(?:[一两三]?[个名位]|新的?|队友|成员|智能体|助手|[\s：:，,]|名叫|名为|叫做?)*", spawn),
    Intent(r"(?:require|demand|ask\s+for)\s+(?:an?|his|her|their)\s+plan\b.*"
           r"|(?:an?\s+)?plan\s+(?:is\s+)?(?:required|needed)\b.*",
           r"(?:需要|必须|要求|先)*(?:提?交|提出)(?:一?[个份])?(?:计划|方案).*", demand),
    Intent(rf"(?:request|ask\s+for)\s+(?:an?|the)\s+(?:{SHUT_DOWN})\s+(?:of|for|from)"
           rf"\s+{WHOM}[.!\s]*$",
           "(?!)", shut_down),
    Intent(rf"(?:request|ask\s+for)\s+{WHOM}(?:'s)?\s+(?:{SHUT_DOWN})\b",
           rf"(?:请求|要求|让|请|叫|把|通知)?\s*{ZH_WHOM}(?:{GUAN_JI})", shut_down),
    Intent(rf"(?:ask|tell|have|let)\s+{WHOM}\s+(?:to\s+)?(?:{SHUT_DOWN})\b",
           rf"(?:关[停闭掉]|停[止掉]|结束)\s*{ZH_WHOM}[。！\s]*$", shut_down),
    Intent(rf"(?:{SHUT_DOWN})\s+(?:the\s+(?=team\b))?{WHOM}(?:\s+of\s+them)?"
           r"(?:\s+(?:now|please|too))?[.!\s]*$",
           rf"(?:请求|要求)?(?:{GUAN_JI})", shut_down),
    Intent(rf"shut\s+(?:the\s+(?=team\b))?{WHOM}\s+down\b", "(?!)", shut_down),
    Intent(r"(?:review\s+(?:\S+\s+){0,3}?and\s+)?(?P<verdict>approve|accept|reject|decline)\b"
           r"(?:[^.:,]*?(?:\bbecause\b|\bsince\b|[:,])\s*(?P<why>.+)|[^.:,]*[.!\s]*$)"
           r"|review\b(?:\s+(?:it|them|(?:his|her|their|the|\S+'s)\s+plans?))?[.!\s]*$",
           r"(?:(?:审[阅查核批]|看)[^，。]{0,4}?)?(?P<verdict>批准|通过|同意|拒绝|驳回)"
           r"(?:[^，：:,因]*?(?:[，,：:]|因为|理由是)(?:因为|理由是)?\s*(?P<why>.+)|[^，：:,]*$)"
           r"|审[阅查核]", review),
    *TASKS,
    *TALK,
    Intent(r"(?!)", rf"{ZH_WHO}\s*(?P<task>(?:提交|提出|提|给出|写)[^，。]*?(?:计划|方案).*)", tell),
    Intent(rf"(?P<who>she|he|they|her|his|their)\s+(?:should|must|shall|needs?\s+to|ha(?:s|ve)\s+to"
           rf"|is\s+to|(?:first\s+)?(?:task|job)\s*(?:is\s+to\b|is\b|:))\s*{TASK}",
           rf"(?P<who>[她他]们?)\s*(?:应该|必须|需要|负责|得|要|的任务是)[\s：:，,]*{TASK}", tell),
]
ADDRESS = Intent(rf"{WHO}\s*[,:]\s*{TASK}", rf"{WHO}\s*[，：]\s*{TASK}", address)
TEAMMATE = [
    Intent(r"report|tell\s+(?:me|us|the\s+lead|lead)\b|let\s+(?:me|us|the\s+lead)\s+know|how\s+far",
           r"(?:告诉|通知|向)\s*(?:我|lead)|汇报|报告(?!\.|\s*文件)|进展",
           lambda match, reading: []),      # its last words go to the lead by themselves
    PLAN, *TASKS, *WORK, *TALK,
    Intent(r"(?:hi|hello|hey|introduce|good\s+(?:morning|day|evening))\b",
           r"你好|您好|嗨|大家好|(?:自我)?介绍", answer("hello")),
    Intent(r"(?:thanks?|thx|well\s+done|good\s+(?:job|work)|great|nice|perfect|bravo|bye)\b",
           r"谢谢|多谢|感谢|辛苦|[做干]得|很好|太好|不错|再见", answer("thanks")),
    Intent(r"[\w. ]{1,40}\b(?:is|are)\s+(?:ready|done)\b", r"[^，。]{1,40}(?:好了|完成了|已就绪)",
           answer("thanks")),
]

# ── The player: what it puts into a file ─────────────────────────────

USUAL_NAMES = [     # what is asked for -> the file's name, if nobody says it
    (r"\btests?\b|测试", "tests.py"), (r"\bconfig\w*|配置", "config.py"),
    (r"\btables?\b|\bschema\b|表", "schema.sql"), (r"\bfunction\b|\bscript\b|函数|脚本", "main.py"),
    (r"\breport\b|报告", "report.md"), (r"\bnotes?\b|笔记", "notes.md"),
    (r"\bfile\b|文件", "notes.txt"),
]
LIST = r"([A-Za-z_]\w*(?:\s*(?:,|，|、|\band\b|和|与)\s*(?:an?\s+|the\s+)?[A-Za-z_]\w*)*)"
TABLES = [re.compile(pattern, re.IGNORECASE | re.ASCII) for pattern in (
    rf"\btables?\s*(?:called|named|for|:)\s*{LIST}", rf"表\s*(?:叫|名为|：|:)\s*{LIST}",
    rf"{LIST}\s*的?\s*(?:数据)?(?:\btables?\b|表)")]
NO_NAMES = {"a", "an", "the", "and", "with", "new", "another", "one", "two", "small", "simple",
            "sql", "python", "database", "this", "that"}
CHINESE_TABLES = {"用户": "users", "订单": "orders", "商品": "products", "产品": "products"}
COLUMNS = {
    "users": ["name TEXT NOT NULL", "email TEXT NOT NULL UNIQUE"],
    "orders": ["user_id INTEGER NOT NULL REFERENCES users (id)", "total INTEGER NOT NULL"],
    "products": ["name TEXT NOT NULL", "price INTEGER NOT NULL"],
}
FUNCTION = re.compile(r"function\s+(?:called|named)\s+(\w+)|(?:名为|叫做?)\s*(\w+)\s*的?\s*函数"
                      r"|(\w+)\s*(?:\bfunction|函数)(?!\s+(?:called|named))", re.I | re.A)
SAYS = re.compile(r"(?:\bsaying|\bthat\s+says|\bcontaining"
                  r"|\bwith\s+the\s+(?:text|content|words?|line)|内容[是为：:]|写[着上])\s*[:：]?\s*(.+)",
                  re.IGNORECASE | re.DOTALL)


def content_for(path, clause):
    """Something sensible for a file of this kind."""
    quotes = [quote[0][1:-1] for quote in QUOTED.finditer(clause) if quote[0][1:-1] != path]
    says = SAYS.search(clause)
    said = quotes[0] if quotes else TAIL.sub("", says[1]) if says else ""
    make = KINDS.get(path.rpartition(".")[2].lower(), plain)
    return make(PurePath(path).stem, clause.replace(path, ";"), said).rstrip() + "\n"


def sql(stem, clause, said):
    """The tables that are asked for."""
    clause = re.sub("[`\"'“”]", "", clause)
    names = [name for form in TABLES for found in form.findall(clause)
             for name in re.findall(r"\w+", found, re.ASCII) if name.lower() not in NO_NAMES]
    names += [name for word, name in CHINESE_TABLES.items() if f"{word}表" in clause]
    return "\n\n".join(map(table, dict.fromkeys(names or ["items"])))


def table(name):
    """A table with a few plausible columns."""
    columns = ["id INTEGER PRIMARY KEY", *COLUMNS.get(name, ["name TEXT NOT NULL"])]
    return f"CREATE TABLE {name} (\n    " + ",\n    ".join(columns) + "\n);"


def python(stem, clause, said):
    """Settings in a config file, a small function in any other."""
    if stem in ("config", "settings"):
        return 'DEBUG = False\nDATABASE = "app.db"'
    names = [name for found in FUNCTION.findall(clause) for name in found if name]
    name = next((name for name in [*names, stem] if name.isidentifier() and name not in NO_NAMES),
                "main")
    return (f'def {name}():\n    """Written by the offline model."""\n    return {said or name!r}\n'
            f'\n\nif __name__ == "__main__":\n    print({name}())')


def markdown(stem, clause, said):
    """A heading with a sentence below it."""
    return f"# {stem}\n\n{plain(stem, clause, said)}"


def json_object(stem, clause, said):
    """An object with a name and a text."""
    value = {"name": stem, "text": plain(stem, clause, said)}
    return json.dumps(value, ensure_ascii=False, indent=2)


def plain(stem, clause, said):
    """What the file shall say, otherwise where it comes from."""
    return said or PHRASES["written"][is_chinese(clause)].format(stem=stem)


KINDS = {"sql": sql, "py": python, "md": markdown, "json": json_object}


# ── The player: what it says ─────────────────────────────────────────

PHRASES = {     # key -> English, Chinese; "!" is a failure, "?" a file that is not there
    "spawn_teammate": ("{name} has started as {role}.", "{name} 已启动，角色是{role}。"),
    "spawn_teammate!": ("{name} was not started: {result}", "{name} 没有启动：{result}"),
    "send_message": ("I have told {to}: {content}", "已转告 {to}：{content}"),
    "send_message!": ("{to} did not get the message: {result}", "消息没有送到 {to}：{result}"),
    "request_shutdown": ("I have asked {teammate} to stop.", "已请求 {teammate} 关机。"),
    "request_shutdown!": ("{teammate} was not asked to stop: {result}",
                          "没能请求 {teammate} 关机：{result}"),
    "request_plan": ("I have asked {teammate} for a plan: {task}", "已请 {teammate} 提交计划：{task}"),
    "review_plan": ("My decision: {result}", "我的决定：{result}"),
    "review_plan!": ("I could not decide the plan: {result}", "计划没能裁决：{result}"),
    "submit_plan": ("My plan {result}", "我的计划：{result}"),
    "submit_plan!": ("My plan was not approved: {result}", "我的计划没有通过：{result}"),
    "create_task": ("Task {new_id} is on the board: {subject}{notes}",
                    "任务 {new_id} 已放上任务板：{subject}{notes}"),
    "blocked": (" (after {ids})", "（在 {ids} 之后）"),
    "for role": (" (for a {required_role})", "（由{required_role}来做）"),
    "get_task": ("{result}", "{result}"),
    "claim_task": ("I have claimed task {task_id}.", "已认领任务 {task_id}。"),
    "complete_task": ("Task {task_id} is completed.", "任务 {task_id} 已完成。"),
    "release_task": ("Task {task_id} is back on the board.", "任务 {task_id} 已放回任务板。"),
    "list_tasks": ("The board:\n{result}", "任务板：\n{result}"),
    "list_teammates": ("The team:\n{result}", "团队成员：\n{result}"),
    "bash": ("`{command}` printed:\n{result}", "`{command}` 的输出：\n{result}"),
    "bash!": ("`{command}` did not succeed: {result}", "`{command}` 没有执行成功：{result}"),
    "read_file": ("{path} exists. It holds:\n{result}", "{path} 存在，内容如下：\n{result}"),
    "read_file?": ("{path} does not exist: {result}", "{path} 不存在：{result}"),
    "read_file!": ("{path} could not be read: {result}", "{path} 读取失败：{result}"),
    "write_file": ("I have written {path}. It begins: {first}", "{path} 已写好，开头是：{first}"),
    "write_file!": ("{path} was not written: {result}", "{path} 没有写成：{result}"),
    "other": ("{tool}: {result}", "{tool}：{result}"),
    "other!": ("{tool} failed: {result}", "{tool} 失败：{result}"),
    "mail result": ("{sender} reports: {words}", "{sender} 报告：{words}"),
    "mail message": ("{sender} says: {words}", "{sender} 来信：{words}"),
    "mail error": ("{sender} has failed: {words}", "{sender} 出错了：{words}"),
    "mail farewell": ("{sender}'s last report: {words}", "{sender} 的收尾报告：{words}"),
    "mail shutdown_response": ("{sender} answers the shutdown request: {words}",
                               "{sender} 答复关机请求：{words}"),
    "mail plan_approval_request": ("{sender} has submitted a plan ({request_id}).",
                                   "{sender} 提交了计划（{request_id}）。"),
    "mail other": ("{sender} ({type}): {words}", "{sender}（{type}）：{words}"),
    "earlier": ("The inbox holds nothing new. Earlier, {sender} reported: {words}",
                "收件箱里没有新消息。{sender} 之前报告过：{words}"),
    "no mail": ("The inbox holds nothing new.", "收件箱里没有新消息。"),
    "nothing": ("There is nothing new to report.", "没有新情况要汇报。"),
    "skipped": ("I left out {tool} ({about}), because what it needs had failed.",
                "因为前面的步骤失败了，{tool}（{about}）没有做。"),
    "no tool": ("I have no tool {tool} here, so I left that out.", "我没有 {tool} 工具，这一步没有做。"),
    "task 1": ("Create a file called schema.sql with a users table",
               "创建一个名为 schema.sql 的文件，里面有一张 users 表"),
    "task 2": ("Create a file called config.py", "创建一个名为 config.py 的文件"),
    "task 3": ("Create a file called test_schema.py after the schema",
               "等 schema 写好后再创建一个名为 test_schema.py 的文件"),
    "task": ("Create a file called part_{n}.md", "创建一个名为 part_{n}.md 的文件"),
    "write it": ("Write {words}", "写{words}"),
    "role": ("assistant", "助手"),
    "job": ("Do the {task} task.", "做{task}任务。"),
    "plan refactoring": (
        "Refactoring\nThe code is hard to change\nRead the code that is there\n"
        "Move it into small functions\nRun the tests",
        "重构\n现在的代码很难改\n先读懂现有代码\n拆成小函数\n跑一遍测试"),
    "plan task": ("{title}\nSmall steps are easy to check\nLook at what is there\n"
                  "Do the work in small steps\nCheck the result",
                  "{title}\n小步走，容易检查\n先看现状\n分小步完成\n检查结果"),
    "a task": ("The task", "任务"),
    "revised": ("Take into account: {feedback}", "按意见修改：{feedback}"),
    "no feedback": ("the plan was not clear enough", "计划不够清楚"),
    "farewell": ("This is my last report.", "这是我的收尾报告。"),
    "farewell nothing": ("I have done nothing yet.", "我还没有做什么。"),
    "farewell undone": ("Left undone: {words}", "没有做的：{words}"),
    "verdict": ("n: add a step that checks the result", "n：加一步，检查结果"),
    "plan first": ("Submit a plan first.", "先提交计划。"),
    "wait": ("Introduce yourself and wait for a task.", "先介绍一下自己，然后等待任务。"),
    "hello": ("Hello, I am {name}, {role}. I am ready for a task.", "你好，我是 {name}，{role}，随时可以开工。"),
    "thanks": ("Thank you! I am ready for more.", "谢谢！还有任务的话随时叫我。"),
    "written": ("Written by the offline model: {stem}.", "由离线模型写成：{stem}。"),
    "unclear": ("I did not understand this part: {words}", "这一部分我没有看懂：{words}"),
    "help lead": (
        "I am the offline model: I play by rules and am no chat model, so I did not understand "
        "that. I can lead a small team. Try for example:\n"
        "- Spawn alice as a backend developer. Ask her to create a file called schema.sql with a "
        "users table.\n- Check your inbox for alice's result.\n- Ask alice to run `ls -l`.",
        "我是离线模型，只按规则应答，不是聊天模型，所以没有看懂这句话。我能带一个小团队，可以这样对我说：\n"
        "- 派生 alice 担任后端开发，让她创建一个名为 schema.sql 的文件，里面有一张 users 表。\n"
        "- 看看收件箱里有没有 alice 的结果。\n- 让 alice 运行 `ls -l`。"),
    "help board": ("- Create 3 tasks on the board, then spawn alice and bob.",
                   "- 在任务板上创建三个任务，然后派生 alice 和 bob。"),
    "help teammate": (
        "I did not understand this task. I am the offline model: I play by rules and am no chat "
        "model. I can create and read files, run commands and send messages, for example: "
        "Read schema.sql and run `ls -l`.",
        "这个任务我没有看懂。我是离线模型，只按规则应答，不是聊天模型。我会创建文件、读取文件、运行命令和发消息，"
        "例如：读取 schema.sql，然后运行 `ls -l`。"),
}
TASK_ID = re.compile(r"^Task (\w+) is on")      # in the result of create_task
MISSING = re.compile(r"no such file|not found|not exist|cannot find|不存在", re.IGNORECASE)
SHOWN_LINES, SHOWN_LENGTH = 12, 1000        # of a result, when it is told


def shortened(words):
    """The first lines of a text."""
    lines = words[:SHOWN_LENGTH].splitlines()[:SHOWN_LINES]
    short = "\n".join(lines)
    return short + ("\n…" if len(short) < len(words.rstrip("\n")) else "")


def told(done, scene):
    """A call as it went, in a sentence."""
    signs = ("",) if not done.failed else ("?", "!") if MISSING.search(done.result) else ("!",)
    keys = [done.tool + sign for sign in signs] + ["other" + signs[-1]]
    first = str(done.input.get("content", "")).partition("\n")[0]
    ids = ", ".join(map(str, done.input.get("blocked_by", [])))
    notes = (scene.say("blocked", ids=ids) if ids else "") + (
        scene.say("for role", **done.input) if done.input.get("required_role") else "")
    return scene.say(next(key for key in keys if key in PHRASES),
                     **{**done.input, "tool": done.tool, "result": shortened(done.result),
                        "first": first, "notes": notes,
                        "new_id": "".join(TASK_ID.findall(done.result))})


def inbox_told(done, scene):
    """What a look into the inbox brought; the mail in it tells itself."""
    if any(mail.sender for mail in letters(done.result)):
        return ""
    earlier = [event for event in scene.story if isinstance(event, Mail) and event.sender
               and event.type != "idle_notification"]
    named = [mail for mail in earlier if mail.sender in scene.orders[-1]] or [None]
    mail = named[-1]
    if mail and mail not in scene.fresh:
        return scene.say("earlier", sender=mail.sender, words=shortened(mail.text))
    return scene.say("no mail")


def mail_told(mail, scene):
    """A message in a sentence; that somebody is idle is no news."""
    if mail.type == "idle_notification":
        return ""
    words = shortened(mail.text.removeprefix(f"{mail.sender} failed: "))
    key = f"mail {mail.type}" if f"mail {mail.type}" in PHRASES else "mail other"
    return scene.say(key, **mail.tags, sender=mail.sender, words=words)


def event_told(event, scene):
    """What happened, in a sentence."""
    if isinstance(event, Mail):
        return "" if scene.tells(event) else mail_told(event, scene)
    failed_look = event.tool != "check_inbox" or event.failed
    return told(event, scene) if failed_look else inbox_told(event, scene)


def report(scene, reading, skipped):
    """The text that ends a turn: what came in, what was done, and what was not."""
    lines = [event_told(event, scene) for event in last_plans(scene.fresh)]
    if scene.is_new:
        lines += [scene.say(why, tool=step["name"], about=subject(step["input"]))
                  for why, step in skipped]
        lines += [block["text"] for block in reading.blocks if block["type"] == "text"]
        lines += reading.not_understood()
    lines = [line for line in lines if line]
    return "\n".join(lines) or scene.say("nothing")


# ── The player: what it does next ────────────────────────────────────

def subject(arguments):
    """The agent or the file that a call is about."""
    return next((str(arguments[key]) for key in ("name", "to", "teammate", "path", "task_id")
                 if key in arguments), "")


def progress(steps, scene):
    """The step to take now, or None, and the steps that cannot be taken, each with the reason."""
    finished, failed, skipped = iter(scene.done), set(), []
    for step in steps:
        if step["name"] == "complete_task" and failed:
            step = call("release_task", **step["input"])
        words = " ".join(map(str, step["input"].values())).split()
        if step["name"] not in scene.tools:
            skipped.append(("no tool", step))
        elif failed.intersection(words):
            skipped.append(("skipped", step))
        elif done := next(finished, None):
            if done.failed and done.tool == "submit_plan":
                return revised(step, done, scene), skipped
            failed |= {subject(done.input)} if done.failed else set()
        else:
            return ready(step, scene), skipped
    return None, skipped


def revised(step, done, scene):
    """The plan once more with what was said against it; None if it was not rejected."""
    rejected = re.search(r"is rejected\.\s*(.*)", done.result, re.DOTALL)
    if not rejected or "Do not submit it again" in rejected[1]:
        return None
    why = rejected[1].strip().removesuffix("Revise it.")      # which stands there without a reason
    new = scene.say("revised", feedback=why or scene.say("no feedback"))
    steps = [line for line in done.input.get("steps", []) if line != new]
    return call("submit_plan", **{**step["input"], "steps": [*steps, new]})


def ready(step, scene):
    """The step, as soon as it can be taken: a review needs a plan that has come, a task the ids
    of those before it."""
    if "blocked_by" in step["input"]:
        ids = [TASK_ID.findall(done.result) for done in scene.done if done.tool == "create_task"]
        needed = [id for blocker in step["input"]["blocked_by"]
                  for id in ([blocker] if isinstance(blocker, str) else ids[blocker])]
        return call("create_task", **{**step["input"], "blocked_by": needed})
    if step["name"] != "review_plan":
        return step
    decided = {done.input.get("request_id") for done in calls_of(scene.story, "review_plan")}
    latest = {mail.sender: mail.tags.get("request_id") for mail in scene.story
              if isinstance(mail, Mail) and mail.type == "plan_approval_request"
              and step["input"]["who"] in ("", mail.sender)}
    waiting = [plan for plan in latest.values() if plan and plan not in decided]
    arguments = {key: value for key, value in step["input"].items() if key != "who" and value != ""}
    return call("review_plan", request_id=waiting[0], **arguments) if waiting else None


def farewell(scene):
    """The last report: all that was done, and the words that came too late."""
    lines = [scene.say("farewell")]
    calls = last_plans(event for event in scene.story if isinstance(event, Done))
    lines += [told(done, scene) for done in calls] or [scene.say("farewell nothing")]
    lines += [scene.say("farewell undone", words=event.text) for event in scene.fresh
              if scene.tells(event)]
    return "\n".join(lines)


def verdict(plan, scene):
    """The decision on a plan: it has to say how the result is checked."""
    sound = re.search(r"test|check|测试|检查", plan, re.IGNORECASE)
    return "y" if sound else scene.say("verdict")


def player(request):
    """The policy of a rule-based model: the next step of its orders, or a report."""
    scene = Scene(request)
    if scene.wraps_up:
        return farewell(scene)
    plans = [event.text for event in scene.story if isinstance(event, Mail)
             and event.type == "plan_approval_request"]
    if plans and not scene.tools:
        return verdict(plans[-1], scene)
    reading = Reading(scene)
    steps = [block for block in reading.blocks if block["type"] == "tool_use"]
    step, skipped = progress(steps, scene)
    return [step] if step else report(scene, reading, skipped)


# ── Alone ────────────────────────────────────────────────────────────

def main():
    """Serve the player until Ctrl-C."""
    options = argparse.ArgumentParser(description="A rule-based model that needs no key.")
    options.add_argument("--port", type=int, default=8787)
    try:
        server = serve(player, options.parse_args().port)
    except OSError as error:
        sys.exit(str(error))
    with server, contextlib.suppress(KeyboardInterrupt):
        print(f"Listening: set ANTHROPIC_BASE_URL={server.url} for a lesson; Ctrl-C ends it.",
              flush=True)
        while True:
            time.sleep(1)       # a wait without end would be deaf to Ctrl-C on Windows


if __name__ == "__main__":
    main()
