"""The model: what is sent to it stays valid whatever happens, and what it does wrong is said."""

import re
import signal
import threading

import pytest
from conftest import POSIX, call, lesson_path, load, on_stage, results_of, text, words_of
from offline_model import ApiError, Raw, serve

LESSON = "s15"

THOUGHT = {"type": "thinking", "thinking": "Hm. ", "signature": "c2lnbmVk"}
LIST = call("list_teammates")
FLY = call("fly", to="the moon")
WRITE = call("write_file", path="a.txt", content="words")
ASK = call("bash", command="echo ran > ran.txt")        # the person answers with Ctrl-C


def cut(*blocks):
    """An answer that max_tokens cut off."""
    return {"content": list(blocks), "stop_reason": "max_tokens"}


def body(*blocks, **changes):
    """An HTTP answer with these blocks, whatever they are."""
    return Raw.of({"id": "msg_1", "type": "message", "role": "assistant", "model": "a model",
                   "content": list(blocks), "stop_reason": "end_turn", "stop_sequence": None,
                   "usage": {"input_tokens": 1, "output_tokens": 1}, **changes})


def say(stage, words):
    """The person's words, and the lead's turn, however it ends."""
    try:
        stage.say(words)
    except (KeyboardInterrupt, stage.ModelError):
        pass


def answered(stage):
    """The answers that the last request quotes: lists of blocks."""
    return [message["content"] for message in stage.server.requests[-1]["messages"]
            if message["role"] == "assistant"]


def plain(blocks):
    """Blocks without the ids that the server gave them."""
    return [{key: value for key, value in block.items() if key != "id"} for block in blocks]


def worth_keeping(answer):
    """An answer without blank text, as it must come back."""
    blocks = answer["content"] if isinstance(answer, dict) else answer
    blocks = [text(blocks)] if isinstance(blocks, str) else blocks
    return [block for block in blocks if block["type"] != "text" or block["text"].strip()]


@pytest.fixture(scope="module")
def one_stage(request, tmp_path_factory):
    """A stage for the tables; the tests in which the environment matters have their own."""
    module = load(lesson_path(request.config, LESSON))
    workspace = tmp_path_factory.mktemp("tables")
    module.use_workspace(workspace)
    with pytest.MonkeyPatch.context() as monkeypatch:
        with on_stage(module, workspace, monkeypatch) as stage:
            stage.say("Hello")             # the client is made while the environment is right
            yield stage


@pytest.fixture
def talk(one_stage):
    """A new talk with the lead, on the one stage. No request may be refused."""
    one_stage.lesson.LEAD.history.clear()
    one_stage.script.calls.clear()
    one_stage.play(lead=[])
    for path in one_stage.workspace.glob("*.txt"):
        path.unlink()
    yield one_stage
    refusals = one_stage.server.refusals[:]
    one_stage.server.refusals.clear()
    assert refusals == []


# ── A valid history ──────────────────────────────────────────────────

TURNS = {       # what the model answers in a first turn; a second and a third follow
    "words": ["Hello."],
    "words with space around": ["  Hello. \n\n"],
    "several blocks": [[text("One."), text("Two.")]],
    "an empty answer": [[]],
    "blank words": ["  \n "],
    "an empty block beside words": [[text(""), text("Hello.")]],
    "an empty block beside a call": [[text(""), LIST], "done"],
    "blank words behind a call": [[LIST, text(" \n")], "done"],
    "an empty answer to a result": [[LIST], []],
    "a thought": [[THOUGHT, text("Hello.")]],
    "a thought beside a call": [[THOUGHT, text("I look. "), LIST], "done"],
    "a thought alone": [[THOUGHT]],
    "calls round after round": [[LIST], [WRITE, LIST], [LIST], "done"],
    "a call that fails": [[FLY], "done"],
    "a failing call between two": [[LIST, FLY, WRITE], "done"],
    "a call that ctrl-c ends": [[ASK]],
    "the first of two ended by ctrl-c": [[ASK, WRITE]],
    "the last of three ended by ctrl-c": [[LIST, WRITE, ASK]],
    "a later round ended by ctrl-c": [[text("I look."), LIST], [ASK, LIST]],
    "a call cut off": [cut(text("I write."), WRITE), "done"],
    "a call alone cut off": [cut(WRITE), "done"],
    "the last of two cut off": [cut(LIST, WRITE), "done"],
    "words behind a call cut off": [cut(LIST, text("and th")), "done"],
    "words cut off": [cut(text("I wri"))],
    "nothing but the limit": [cut()],
    "rounds without end": [[LIST]] * 4,
    "a failure at once": [Raw(b"{half")],
    "a failure after a round": [[WRITE], Raw(b"{half")],
    "a refusal after a round": [[WRITE], Raw.of({"type": "error", "error": {
        "type": "invalid_request_error", "message": "no"}}, status=400)],
}


@pytest.mark.parametrize("answers", TURNS.values(), ids=TURNS)
def test_whatever_happens_in_a_turn_the_next_is_accepted(talk, typed, monkeypatch, answers):
    monkeypatch.setattr(talk.lesson, "MAX_ROUNDS", 4)
    for words in "first words", "second words", "third words":
        typed("^C")                                # at a question; nobody is asked otherwise
        talk.play(lead=answers if words == "first words" else ["go on"])
        say(talk, words)
    talk.play(lead=["the end"])
    talk.say("last words")
    request = talk.server.requests[-1]
    for words in "first words", "second words", "third words", "last words":
        assert words_of(request).count(words) == 1
    kept = [worth_keeping(answer) for answer in [*answers, "go on", "go on"]
            if not isinstance(answer, Raw)]
    assert [plain(blocks) for blocks in answered(talk)] == [blocks for blocks in kept if blocks]


def test_mail_and_words_that_come_together_are_each_there_once(stage):
    for number in range(3):
        stage.BUS.send("alice", "lead", f"mail {number}")
    stage.play(lead=[[call("check_inbox")], [], "done"])
    stage.say("words")
    stage.BUS.send("alice", "lead", "mail 3")
    stage.BUS.send("bob", "lead", "mail 4")
    stage.until_rest()
    assert all(words_of(stage.calls("lead")[-1]).count(f"mail {n}") == 1 for n in range(5))


@POSIX
@pytest.mark.parametrize("answer", ["late words", [WRITE]], ids=["words", "a call"])
def test_ctrl_c_while_the_model_thinks_loses_only_its_answer(stage, answer):
    def interrupted(request):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        return answer

    stage.play(lead=["well", interrupted, "and on"])
    stage.say("first words")
    with pytest.raises(KeyboardInterrupt):
        stage.say("second words")
    stage.say("third words")
    request = stage.server.requests[-1]
    assert all(words_of(request).count(f"{nth} words") == 1 for nth in ("first", "second", "third"))
    assert [text("well")] in answered(stage)
    assert not (stage.workspace / "a.txt").exists()


@POSIX
def test_ctrl_c_during_the_leads_command_ends_it_and_the_lead_goes_on(stage, monkeypatch):
    monkeypatch.setattr(stage.lesson, "ALLOW_ALL", True)
    stage.play(lead=[[WRITE, call("bash", command="kill -INT $PPID; sleep 60"), LIST], "and on"])
    with pytest.raises(KeyboardInterrupt):
        stage.say("first words")
    stage.say("second words")
    written, *others = results_of(stage.calls("lead")[1])
    assert "is_error" not in written and len(others) == 2
    assert all(result["is_error"] and result["content"] for result in others)


def test_results_that_were_there_before_an_interruption_are_kept(talk, typed):
    typed("^C")
    talk.play(lead=[[WRITE, ASK, LIST], "and on"])
    with pytest.raises(KeyboardInterrupt):
        talk.say("first words")
    talk.say("second words")
    written, asked, listed = results_of(talk.calls("lead")[1])
    assert "a.txt" in written["content"] and "is_error" not in written
    assert asked["is_error"] and listed["is_error"]
    assert not (talk.workspace / "ran.txt").exists()


def test_blocks_of_the_assistant_come_back_to_the_letter(talk):
    blocks = [THOUGHT, {"type": "redacted_thinking", "data": "aGlkZGVu"},
              {**text("I look. \n"), "citations": None}, {**LIST, "id": "toolu_of_a_test"}]
    talk.play(lead=[blocks])
    talk.say("Hello")
    assert answered(talk) == [blocks]


# ── What is cut off ──────────────────────────────────────────────────

CUTS = {        # an answer cut off by max_tokens -> which of its calls run
    "a call": (cut(text("I write."), WRITE), [False]),
    "a call alone": (cut(WRITE), [False]),
    "the second call": (cut(LIST, WRITE), [True, False]),
    "words behind a call": (cut(WRITE, text("and th")), [True]),
}


@pytest.mark.parametrize("answer, run", CUTS.values(), ids=CUTS)
def test_a_call_that_was_cut_off_is_not_run_and_the_model_goes_on(talk, answer, run):
    talk.play(lead=[answer, "done"])
    talk.say("Write.")
    results = results_of(talk.calls("lead")[1])
    assert [not result.get("is_error") for result in results] == run
    assert (talk.workspace / "a.txt").exists() == run[-1]


# ── Text that UTF-8 cannot carry ─────────────────────────────────────

@pytest.mark.parametrize("block", [
    text("half \ud800"), {**WRITE, "id": "toolu_1", "input": {"path": "a\ud800", "content": "b"}},
    {**WRITE, "id": "toolu_1", "input": {"path": "a.txt", "content": "b", "\udfff": "c"}},
    {**FLY, "id": "toolu_1", "input": {"deep": [{"\ud800": ["\udfff"]}]}},
], ids=["words", "an argument", "a name of an argument", "deep inside"])
def test_half_a_character_in_an_answer_breaks_no_later_request(talk, block):
    talk.play(lead=[body(block), "on", "and on"])
    talk.say("first words")
    talk.say("second words")
    assert "\ufffd" in words_of(talk.server.requests[-1])


# ── Malformed answers and refusals ───────────────────────────────────

MALFORMED = {
    "nothing": Raw(b""),
    "not JSON": Raw(b"{half"),
    "a page": Raw(b"<html>Welcome</html>", content_type="text/html"),
    "JSON as text": Raw(b"{}", content_type="text/plain"),
    "not UTF-8": Raw(b'{"content": "\xff"}'),
    "null": Raw.of(None),
    "a number": Raw.of(7),
    "a string": Raw.of("hello"),
    "a list": Raw.of([{"type": "text", "text": "hello"}]),
    "an empty object": Raw.of({}),
    "another API": Raw.of({"choices": [{"message": {"content": "hello"}}]}),
    "an error with status 200": Raw.of({"type": "error", "error": {"type": "api_error"}}),
    "no content": body(content=None),
    "content as a string": body(content="hello"),
    "content as an object": body(content={"type": "text", "text": "hello"}),
    "a string as block": body("hello"),
    "null as block": body(None),
    "a block without type": body({"text": "hello"}),
    "a text without text": body({"type": "text"}),
    "text that is null": body({"type": "text", "text": None}),
    "text that is a list": body({"type": "text", "text": ["hello"]}),
    "a call without id": body({"type": "tool_use", "name": "list_teammates", "input": {}}),
    "a call without name": body({"type": "tool_use", "id": "toolu_1", "input": {}}),
    "a call without input": body({"type": "tool_use", "id": "toolu_1", "name": "list_teammates"}),
    "input as a list": body({**LIST, "id": "toolu_1", "input": ["a"]}),
    "input as a string": body({**LIST, "id": "toolu_1", "input": "{}"}),
    "an id that is a number": body({**LIST, "id": 7}),
    "a name that is a number": body({**LIST, "id": "toolu_1", "name": 7}),
    "deep nesting": Raw(b"[" * 100_000),
}


def one_sentence(error):
    """The sentence of a ModelError; it is one line, short and says where."""
    sentence = str(error.value)
    assert "\n" not in sentence and "127.0.0.1" in sentence and len(sentence) < 500
    return sentence


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("answer", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_answer_is_a_model_error_and_leaves_no_trace(talk, quick_retries, answer):
    talk.play(lead=["well", *[answer] * 3])
    talk.say("first words")
    with pytest.raises(talk.ModelError) as error:
        talk.say("second words")
    one_sentence(error)
    talk.play(lead=["on"])
    talk.say("third words")
    assert answered(talk) == [[text("well")]]


REFUSALS = {
    400: ("invalid_request_error", "answered 400: no reason"),
    401: ("authentication_error", "answered 401: no reason.*ANTHROPIC_API_KEY"),
    403: ("permission_error", "answered 403: no reason.*ANTHROPIC_API_KEY"),
    404: ("not_found_error", "answered 404: no reason.*MODEL_ID"),
    413: ("request_too_large", "answered 413: no reason"),
    429: ("rate_limit_error", "answered 429: no reason"),
    500: ("api_error", "answered 500: no reason"),
    529: ("overloaded_error", "answered 529: no reason"),
}


@pytest.mark.parametrize("status", REFUSALS)
def test_a_refusal_is_one_sentence_with_its_reason(talk, status):
    kind, sentence = REFUSALS[status]

    def refuse(request):
        raise ApiError(status, kind, "no reason")

    talk.play(lead=[refuse] * 3)
    with pytest.raises(talk.ModelError) as error:
        talk.say("Hello")
    assert re.search(sentence, one_sentence(error))
    assert len(talk.calls("lead")) == (3 if status >= 429 else 1)       # the SDK's own retries


def test_an_unknown_model_is_one_sentence_that_names_it(stage, monkeypatch):
    monkeypatch.setenv("MODEL_ID", "no-such-model-4")
    with pytest.raises(stage.ModelError) as error:
        stage.say("Hello")
    assert re.search("404.*no-such-model-4.*MODEL_ID", one_sentence(error))
    assert [status for status, _ in stage.server.refusals] == [404]
    stage.server.refusals.clear()


def test_a_page_as_refusal_is_one_sentence(talk, quick_retries):
    talk.play(lead=[Raw(b"<html>\n<h1>Bad gateway</h1>\n</html>", 502, "text/html")] * 3)
    with pytest.raises(talk.ModelError) as error:
        talk.say("Hello")
    assert "502" in one_sentence(error)


def test_an_answer_that_breaks_off_is_one_sentence(talk, quick_retries):
    talk.play(lead=[Raw(b'{"id": "msg_1"', promised=500)] * 3)
    with pytest.raises(talk.ModelError) as error:
        talk.say("Hello")
    assert "cannot be reached" in one_sentence(error)


def test_an_answer_that_never_comes_is_one_sentence(stage, quick_retries, monkeypatch):
    monkeypatch.setattr(stage.lesson, "REQUEST_TIMEOUT", 0.1)
    stage.play(lead=[stage.hold("late")] * 3)
    with pytest.raises(stage.ModelError) as error:
        stage.say("Hello")
    assert "timed out" in one_sentence(error)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://127.0.0.1:99999",
                                 "http://[127.0.0.1", "127.0.0.1", "nonsense://127.0.0.1"])
def test_an_address_that_leads_nowhere_is_one_sentence(stage, quick_retries, monkeypatch, url):
    monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
    with pytest.raises(stage.ModelError) as error:
        stage.say("Hello")
    assert "ANTHROPIC_BASE_URL" in one_sentence(error)


# ── Which model, and the way to it ───────────────────────────────────

@pytest.mark.parametrize("variables, model", [
    ({"MODEL_ID": "one", "ANTHROPIC_MODEL": "two"}, "one"),
    ({"ANTHROPIC_MODEL": "two"}, "two"),
    ({"MODEL_ID": "", "ANTHROPIC_MODEL": "two"}, "two"),
    ({}, None),
    ({"MODEL_ID": "", "ANTHROPIC_MODEL": ""}, None),
])
def test_the_model_is_the_one_that_the_environment_names(stage, monkeypatch, variables, model):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stage.say("Hello")
    assert stage.server.requests[0]["model"] == (model or stage.DEFAULT_MODEL)


def test_a_teammate_asks_the_same_model_as_the_lead(stage, monkeypatch):
    monkeypatch.setenv("MODEL_ID", "one")
    stage.spawn("alice")
    stage.until_rest()
    assert {request["model"] for request in stage.server.requests} == {"one"}


def test_a_proxy_does_not_come_between_the_lesson_and_this_machine(stage, monkeypatch):
    proxy = serve(lambda request: "I am the proxy.")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy.url)
        monkeypatch.setenv(name.lower(), proxy.url)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    stage.say("Hello")
    assert len(stage.server.requests) == 1
    assert (proxy.requests, proxy.refusals) == ([], [])
    proxy.close()
