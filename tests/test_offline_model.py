"""The offline model: its server keeps the rules of the API, its player says only what happened."""

import copy
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import anthropic
import pytest
from anthropic.types import Message

MODEL = Path(__file__).resolve().parent.parent / "tools" / "offline_model.py"
LIMIT = 20          # seconds that a test waits before it fails
NO_KEY = {"Authorization": anthropic.Omit()}     # where this SDK puts the key

spec = importlib.util.spec_from_file_location("offline_model_under_test", MODEL)
model = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(model)
text, call, serve, player, ApiError, Raw = (
    model.text, model.call, model.serve, model.player, model.ApiError, model.Raw)


def until(condition):
    """Wait until the condition holds, and fail after the limit."""
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, "the condition did not come to hold"
        time.sleep(0.002)


def client_of(server, **options):
    """The real SDK, without a proxy and without retries unless a test wants them."""
    http = anthropic.DefaultHttpxClient(trust_env=False)
    return anthropic.Anthropic(**{"base_url": server.url, "api_key": "local", "auth_token": None,
                                  "max_retries": 0, "http_client": http, **options})


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def use(id="toolu_1", name="bash"):
    return {"type": "tool_use", "id": id, "name": name, "input": {}}


def result(id="toolu_1", **fields):
    return {"type": "tool_result", "tool_use_id": id, **fields}


def tool(name="bash", **fields):
    return {"name": name, "input_schema": {"type": "object"}, **fields}


def request(*messages, without=None, **fields):
    """A good request but for what is given."""
    whole = {"model": "some-model", "max_tokens": 10, "messages": [*messages] or [user("hi")],
             **fields}
    return {name: value for name, value in whole.items() if name != without}


def talk(*blocks, before=()):
    """A conversation in which the assistant has called a tool, and these blocks come back."""
    return request(user("go"), *before, assistant([use()]), user([*blocks]))


@pytest.fixture(scope="module")
def server():
    with serve(lambda request: "ok") as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with client_of(server) as client:
        yield client


def send(client, body, path="/v1/messages", **options):
    """A body as it is, past the checks that the SDK makes of its own arguments."""
    content = {"content": body} if isinstance(body, bytes) else {"body": body}
    return client.post(path, cast_to=Message, options=options, **content)


# ── The server: what it refuses ──────────────────────────────────────

INVALID = 400, anthropic.BadRequestError
ONE, TWO = use("toolu_1"), use("toolu_2")

REFUSED = {     # what is wrong -> body, part of the sentence, status and exception, more for send
    "rule 1: no model": (request(without="model"), "model: field required", INVALID),
    "rule 1: no messages": (request(without="messages"), "messages: field required", INVALID),
    "rule 1: no max_tokens": (request(without="max_tokens"), "max_tokens: field", INVALID),
    "rule 1: an empty list of messages": (request(messages=[]), "at least one", INVALID),
    "rule 1: the assistant speaks first": (request(assistant("hi")), "user role", INVALID),
    "types: an empty model": (request(model=""), "model", INVALID),
    "types: max_tokens is 0": (request(max_tokens=0), "positive", INVALID),
    "types: max_tokens is true": (request(max_tokens=True), "positive", INVALID),
    "types: max_tokens is a fraction": (request(max_tokens=1.5), "positive", INVALID),
    "types: messages is an object": (request(messages={}), "a list", INVALID),
    "types: a message is a string": (request("hi"), "an object", INVALID),
    "types: a message without content": (request({"role": "user"}), "content: field", INVALID),
    "types: content is a number": (request(user(7)), "a string or a list", INVALID),
    "types: a role that is a list": (request({"role": [], "content": "x"}), "role", INVALID),
    "types: the role system": (request({"role": "system", "content": "x"}), "role", INVALID),
    "types: a message with more": (request({**user("x"), "ts": 1}), "extra inputs", INVALID),
    "types: a block is a string": (request(user(["hi"])), "an object", INVALID),
    "types: a block without type": (request(user([{"text": "hi"}])), "type: field", INVALID),
    "types: a block of an unknown type": (request(user([{"type": "x"}])), "one of", INVALID),
    "types: a type that is a list": (request(user([{"type": []}])), "one of", INVALID),
    "types: text is a number": (request(user([text(1)])), "a string", INVALID),
    "types: input is a string": (request(user("go"), assistant([{**use(), "input": ""}]),
                                         user([result()])), "an object", INVALID),
    "types: is_error is a word": (talk(result(is_error="no")), "true or false", INVALID),
    "types: a result's content is an object": (talk(result(content={})), "string or a", INVALID),
    "types: a result without an id": (talk({"type": "tool_result"}), "tool_use_id", INVALID),
    "types: system is a number": (request(system=1), "system", INVALID),
    "types: system holds an image": (request(system=[{"type": "image", "source": {}}]),
                                     "cannot stand in system", INVALID),
    "types: tools is an object": (request(tools={}), "a list", INVALID),
    "types: temperature is a word": (request(temperature="hot"), "a number", INVALID),
    "types: a stream": (request(stream=True), "does not stream", INVALID),
    "rule 3: an empty message": (request(user("")), "empty", INVALID),
    "rule 3: an empty list": (request(user([]), assistant("x"), user("y")), "empty", INVALID),
    "rule 3: an empty answer sent back": (request(user("x"), assistant([]), user("y")),
                                          "empty", INVALID),
    "rule 3: an empty message beside another": (request(user("x"), user("")), "empty", INVALID),
    "rule 3: blank words": (request(user(" \n")), "whitespace", INVALID),
    "rule 3: an empty text": (request(user([text(""), text("x")])), "whitespace", INVALID),
    "rule 3: a blank last answer": (request(user("x"), assistant([text("")])), "white", INVALID),
    "rule 3: a blank text in a result": (talk(result(content=[text(" ")])), "white", INVALID),
    "rule 3: a blank text in system": (request(system=[text("")]), "whitespace", INVALID),
    "rule 3: an error without a word": (talk(result(is_error=True)), "is_error", INVALID),
    "rule 4: no result": (talk(text("well?")), "without a tool_result", INVALID),
    "rule 4: nothing after the call": (request(user("go"), assistant([ONE])), "without", INVALID),
    "rule 4: one of two results": (request(user("go"), assistant([ONE, TWO]), user([result()])),
                                   "toolu_2", INVALID),
    "rule 4: the second result too late": (
        request(user("go"), assistant([ONE, TWO]), user([result()]), assistant("hm"),
                user([result("toolu_2")])), "toolu_2", INVALID),
    "rule 4: a result without a call": (request(user([result()])), "without a tool_use", INVALID),
    "rule 4: a result of an older call": (
        request(user("go"), assistant([ONE]), user([result()]), assistant("x"), user([result()])),
        "without a tool_use", INVALID),
    "rule 4: words before the result": (talk(text("x"), result()), "before other", INVALID),
    "rule 4: words before it in another message": (
        request(user("go"), assistant([ONE]), user("x"), user([result()])), "before", INVALID),
    "rule 4: two results for one call": (talk(result(), result()), "single", INVALID),
    "rule 4: an id twice in one answer": (request(user("go"), assistant([ONE, ONE]),
                                                  user([result()])), "unique", INVALID),
    "rule 4: an id twice in the conversation": (
        talk(result(), before=[assistant([ONE]), user([result()])]), "unique", INVALID),
    "rule 5: the assistant brings a result": (
        request(user("go"), assistant([result()]), user("x")), "in assistant content", INVALID),
    "rule 5: the user calls a tool": (request(user([use()])), "in user content", INVALID),
    "rule 5: a call inside a result": (talk(result(content=[use("toolu_9")])),
                                       "in tool_result content", INVALID),
    "rule 6: a last answer ends in a space": (request(user("x"), assistant("And ")), "trailing",
                                              INVALID),
    "rule 7: a tool without a name": (request(tools=[{"input_schema": {"type": "object"}}]),
                                      "name: field", INVALID),
    "rule 7: a tool's name with a space": (request(tools=[tool("run it")]), "letters", INVALID),
    "rule 7: a tool's name of 65 letters": (request(tools=[tool("a" * 65)]), "64", INVALID),
    "rule 7: two tools of one name": (request(tools=[tool(), tool()]), "unique", INVALID),
    "rule 7: a tool without a schema": (request(tools=[{"name": "bash"}]), "schema", INVALID),
    "rule 7: a schema of a string": (request(tools=[tool(input_schema={"type": "string"})]),
                                     "object schema", INVALID),
    "rule 7: a description that is a list": (request(tools=[tool(description=[])]), "description",
                                             INVALID),
    "body: not JSON": (b"{", "not valid JSON", INVALID),
    "body: not UTF-8": (b'"\xff"', "not valid JSON", INVALID),
    "body: half a surrogate pair": (json.dumps(request(user("\ud83d"))).encode(), "not valid",
                                    INVALID),
    "body: nested without end": (b"[" * 200_000, "not valid JSON", INVALID),
    "body: a list": ([request()], "an object", INVALID),
    "body: 33 MB": (request(user("x" * 33 * 1024 * 1024)), "exceeds",
                    (413, anthropic.ContentTooLargeError)),
    "no key": (request(), "x-api-key", (401, anthropic.AuthenticationError), {"headers": NO_KEY}),
    "an unknown path": (request(), "not found", (404, anthropic.NotFoundError),
                        {"path": "/v1/complete"}),
    "an unknown model": (request(model="no-such-model-4"), "no-such-model-4",
                         (404, anthropic.NotFoundError)),
}


@pytest.mark.parametrize("row", REFUSED.values(), ids=REFUSED)
def test_what_the_api_refuses_is_refused_and_the_next_request_works(client, server, row):
    body, sentence, (status, error), *more = row
    accepted, refused = len(server.requests), len(server.refusals)
    with pytest.raises(error, match=re.escape(sentence)) as caught:
        send(client, body, **(more[0] if more else {}))
    assert type(caught.value) is error and caught.value.status_code == status
    shape = caught.value.body
    assert shape["type"] == "error" and set(shape["error"]) == {"type", "message"}
    assert shape["request_id"] == caught.value.response.headers["request-id"]
    assert server.refusals[refused:] == [(status, shape["error"]["message"])]
    assert len(server.requests) == accepted
    assert send(client, request()).content[0].text == "ok"


def test_another_method_than_post_is_refused_and_the_root_says_what_is_here(client):
    for ask in (client.get, client.put, client.delete):
        with pytest.raises(anthropic.APIStatusError, match="use POST") as caught:
            ask("/v1/messages", cast_to=Message)
        assert caught.value.status_code == 405
    assert "/v1/messages" in client.get("/", cast_to=object)["message"]


# ── The server: what it accepts ──────────────────────────────────────

ACCEPTED = {
    "words": request(),
    "system as a string and tools": request(system="Be kind.", tools=[tool(), tool("read_file")]),
    "system as blocks": request(system=[text("Be kind.")]),
    "an empty system": request(system=""),
    "two messages of one role": request(user("a"), user("b")),
    "two answers in a row": request(user("a"), assistant("b"), assistant("c"), user("d")),
    "an answer in two messages, results in two": request(
        user("go"), assistant([ONE]), assistant([TWO]), user([result()]), user([result("toolu_2")])),
    "a result, then words": talk(result(content="done"), text("and now?")),
    "a result, then words in another message": request(
        user("go"), assistant([ONE]), user([result()]), user("and now?")),
    "results in another order": request(user("go"), assistant([ONE, TWO]),
                                        user([result("toolu_2"), result("toolu_1")])),
    "a result of blocks": talk(result(content=[text("a"), {"type": "image", "source": {}}])),
    "a result without content": talk(result()),
    "an empty result": talk(result(content="")),
    "a failed result": talk(result(content="No such file.", is_error=True)),
    "a last answer that goes on": request(user("a"), assistant("The answer is")),
    "a last answer without content": request(user("a"), assistant([])),
    "a last answer of an empty string": request(user("a"), assistant("")),
    "whitespace inside the conversation": request(user("a"), assistant("b \n"), user("c")),
    "thinking kept as it came": request(
        user("a"), assistant([{"type": "thinking", "thinking": "", "signature": "x"}, text("b")]),
        user("c")),
    "any model, any script": request(user("小明 😀 \u2028"), model="模型"),
}


@pytest.mark.parametrize("body", ACCEPTED.values(), ids=ACCEPTED)
def test_what_the_api_takes_is_taken_as_it_came(client, server, body):
    assert send(client, body).content[0].text == "ok"
    assert server.requests[-1] == body


@pytest.mark.parametrize("name", ["X-Api-Key", "Authorization"])
def test_a_key_may_stand_in_either_header(client, name):
    assert send(client, request(), headers={**NO_KEY, name: "local"}).content[0].text == "ok"


def test_a_query_behind_the_path_is_no_other_path(client):
    assert send(client, request(), path="/v1/messages?beta=true").content[0].text == "ok"


# ── The server: what a policy may answer ─────────────────────────────

@pytest.fixture
def ask():
    """A function that puts a request to a server with this policy, through the SDK."""
    servers = []

    def ask(policy, **options):
        servers.append(serve(policy if callable(policy) else lambda request: policy))
        return client_of(servers[-1], **options).messages.create(**request())

    ask.servers = servers
    yield ask
    for server in servers:
        server.close()


def test_a_string_is_one_text_that_ends_the_turn(ask):
    message = ask("hello")
    assert [block.text for block in message.content] == ["hello"]
    assert (message.stop_reason, message.model, message.role) == (
        "end_turn", "some-model", "assistant")
    assert message.usage.input_tokens > 0 and message.usage.output_tokens > 0


def test_an_empty_string_is_an_answer_without_content(ask):
    assert ask("").content == []


def test_a_call_stops_the_turn_for_the_tool_and_keeps_its_arguments(ask):
    message = ask([text("I look."), call("read_file", path="a.txt", tool="x")])
    assert message.stop_reason == "tool_use"
    assert message.content[1].input == {"path": "a.txt", "tool": "x"}


def test_fields_of_a_message_override_the_usual_ones(ask):
    message = ask({"content": [call("bash")], "stop_reason": "max_tokens", "model": "other"})
    assert (message.stop_reason, message.model) == ("max_tokens", "other")


def test_calls_get_ids_that_no_other_call_has_unless_they_bring_their_own(ask):
    content = [call("bash"), call("bash"), use("mine")]
    ids = [[block.id for block in ask(content).content] for _ in range(2)]
    assert len({*ids[0], *ids[1]}) == 5 and ids[0][2] == ids[1][2] == "mine"
    assert ids[0][0].startswith("toolu_") and "id" not in content[0]


def raises(error):
    def policy(request):
        raise error
    return policy


@pytest.mark.parametrize("status, type, error", [
    (400, "invalid_request_error", anthropic.BadRequestError),
    (401, "authentication_error", anthropic.AuthenticationError),
    (403, "permission_error", anthropic.PermissionDeniedError),
    (404, "not_found_error", anthropic.NotFoundError),
    (429, "rate_limit_error", anthropic.RateLimitError),
    (500, "api_error", anthropic.InternalServerError),
    (503, "api_error", anthropic.ServiceUnavailableError),
    (529, "overloaded_error", anthropic.OverloadedError),
])
def test_a_policy_plays_a_failing_api(ask, status, type, error):
    with pytest.raises(error, match="sorry") as caught:
        ask(raises(ApiError(status, type, "sorry")))
    assert caught.value.status_code == status and caught.value.body["error"]["type"] == type
    assert ask.servers[0].refusals == [] and len(ask.servers[0].requests) == 1


def test_a_policy_that_breaks_is_an_api_error_and_the_server_lives_on(ask):
    answers = iter([None, {"content": [{"no": "type"}]}])
    with pytest.raises(anthropic.InternalServerError, match="ZeroDivisionError: .* by zero"):
        ask(lambda request: 1 // 0)
    client = client_of(ask.servers[0])
    ask.servers[0].policy = lambda request: next(answers)
    for _ in range(2):          # what is no answer breaks in the same way
        with pytest.raises(anthropic.InternalServerError):
            send(client, request())
    ask.servers[0].policy = lambda request: "better"
    assert send(client, request()).content[0].text == "better"


@pytest.mark.parametrize("headers, slept", [
    (None, 0.001), ({"retry-after": "7"}, 7), ({"Retry-After-Ms": "250"}, 0.25),
    ({"x-more": "y"}, 0.001)])
def test_the_sdk_retries_after_the_time_that_the_header_says(ask, monkeypatch, headers, slept):
    pauses = []
    monkeypatch.setattr("anthropic._base_client.time.sleep", pauses.append)
    errors = [ApiError(429, "rate_limit_error", "slow down", headers)] * 2

    def policy(request):
        if errors:
            raise errors.pop()
        return "at last"

    assert ask(policy, max_retries=2).content[0].text == "at last"
    assert pauses == [slept, slept] and len(ask.servers[0].requests) == 3


def test_a_retry_may_be_forbidden(ask):
    with pytest.raises(anthropic.InternalServerError):
        ask(raises(ApiError(500, "api_error", "no", {"x-should-retry": "false"})), max_retries=2)
    assert len(ask.servers[0].requests) == 1


def test_a_body_shorter_than_promised_breaks_the_connection_off(ask):
    with pytest.raises(anthropic.APIConnectionError):
        ask(Raw(b'{"id": ', promised=500))


def test_a_foreign_body_reaches_the_client_as_it_is(ask):
    assert ask(Raw(b"<html>", content_type="text/html")) == "<html>"
    with pytest.raises(ValueError):
        ask(Raw(b'{"id": '))
    with pytest.raises(anthropic.APIStatusError) as caught:
        ask(Raw(b"teapot", status=418))
    assert caught.value.status_code == 418


# ── The server: many clients, and the end ────────────────────────────

def test_many_clients_that_come_at_once_are_all_answered():
    arrived = threading.Barrier(40)

    def policy(request):
        arrived.wait(LIMIT)         # all forty are in the policy at the same time
        return request["messages"][0]["content"]

    with serve(policy) as server, client_of(server) as client:
        answers = {}

        def work(number):
            message = client.messages.create(**request(user(str(number))))
            answers[number] = message.content[0].text

        threads = [threading.Thread(target=work, args=(number,)) for number in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
    assert answers == {number: str(number) for number in range(40)}
    assert sorted(int(body["messages"][0]["content"]) for body in server.requests) == [*range(40)]


def test_close_cuts_open_connections_off_and_frees_the_port():
    server, stuck = serve(lambda request: "ok"), threading.Event()
    client = client_of(server)
    send(client, request())                         # the connection stays open behind this
    server.policy = lambda request: stuck.wait(LIMIT) and "late"
    failures = []
    waiting = threading.Thread(target=lambda: failures.append(
        pytest.raises(anthropic.APIConnectionError, send, client, request())))
    waiting.start()
    until(lambda: len(server.requests) == 2)
    server.close()
    server.close()                                  # twice does no harm
    waiting.join(LIMIT)
    assert failures and not waiting.is_alive()
    with pytest.raises(anthropic.APIConnectionError):
        send(client, request())
    stuck.set()
    serve(player, server.server_address[1]).close()


def test_a_client_that_leaves_early_is_no_trouble(capsys):
    free = threading.Event()
    with serve(lambda request: free.wait(LIMIT) and "ok") as server:
        with pytest.raises(anthropic.APITimeoutError):
            client_of(server, timeout=0.05).messages.create(**request())
        free.set()
        assert send(client_of(server), request()).content[0].text == "ok"
        until(lambda: len(server.connections) <= 1)
    assert capsys.readouterr() == ("", "")


def test_a_port_in_use_is_one_clear_sentence():
    with serve(player) as server:
        port = server.server_address[1]
        with pytest.raises(OSError, match=f"^Port {port} cannot be used .*; choose another"):
            serve(player, port)
        alone = run_alone("--port", str(port))
        assert alone.wait(LIMIT) == 1 and alone.stderr.read().startswith(f"Port {port} cannot")


def run_alone(*options):
    return subprocess.Popen([sys.executable, str(MODEL), *options], encoding="utf-8",
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.skipif(os.name == "nt", reason="it sends a POSIX signal")
def test_alone_it_serves_the_player_until_ctrl_c():
    alone = run_alone("--port", "0")
    url = re.search(r"ANTHROPIC_BASE_URL=(\S+)", alone.stdout.readline())[1].rstrip(";,")
    http = anthropic.DefaultHttpxClient(trust_env=False)
    client = anthropic.Anthropic(base_url=url, api_key="local", http_client=http)
    assert "offline model" in client.messages.create(**request(user("asdf"))).content[0].text
    alone.send_signal(signal.SIGINT)
    assert alone.wait(LIMIT) == 0 and alone.stderr.read() == ""
