"""Protocol requests: an id, one answer of the right kind by the one who was asked, its handler."""

import copy
import dataclasses
import functools
import itertools
import re

import pytest
from conftest import until, words_of
from protocols import at_once, by_hand, everything, latest, member, message, on_record
from test_teammate import idle

LESSON = "s16"

ID, OTHER_ID = "req_000007", "req_000008"
ASKED = {"shutdown": "alice", "plan_approval": "lead"}        # request -> who was asked
SETTLED = ["approved", "rejected", "withdrawn"]
FAULTS = {      # rule -> what differs from a right answer, and the values that break the rule
    1: ("request_id", [OTHER_ID, "REQ_000007", "req_000007 ", "", None, 7, [ID]]),
    2: ("response_type", ["shutdown_response", "plan_approval_response", "shutdown_request",
                          "message", "farewell", "gossip"]),
    3: ("sender", ["bob", "alice", "lead", "Alice", ""]),
    4: ("status", SETTLED),
    5: ("approve", ["false", "true", 1, 0, None, []]),
}


def right_answer(kind):
    """The answer that settles a request of this kind, and the status that it finds."""
    return {"response_type": f"{kind}_response", "request_id": ID, "approve": True,
            "sender": ASKED[kind], "status": "pending"}


def faults(kind, rule):
    """Each way to break a rule, as what differs from the right answer."""
    part, values = FAULTS[rule]
    right = repr(right_answer(kind)[part])                    # 1 equals True, but is no bool
    return [{part: value} for value in values if repr(value) != right]


def breaking(rule):
    """Run a test once for each way to break a rule, for both kinds of request."""
    rows = [(kind, fault) for kind in ASKED for fault in faults(kind, rule)]
    return pytest.mark.parametrize("kind, fault", rows, ids=lambda value: str(value).strip("{}"))


@pytest.fixture
def answer(lesson):
    """A function that answers the request on record: it, what came back, is all as it was?"""
    def answer(kind, fault, feedback=""):
        arguments = {**right_answer(kind), **fault, "feedback": feedback}
        state = on_record(lesson, kind, ID, arguments.pop("status"))
        before = everything(lesson)
        return state, lesson.match_response(**arguments), everything(lesson) == before
    return answer


@pytest.fixture
def refused(answer, capsys):
    """A function that gives an answer, sees that it changed nothing, and returns the line shown."""
    def refused(kind, fault):
        assert answer(kind, fault)[1:] == (None, True)
        [line] = capsys.readouterr().out.splitlines()
        assert str({**right_answer(kind), **fault}["request_id"]) in line
        return line
    return refused


# ── Answers ──────────────────────────────────────────────────────────

@pytest.mark.parametrize("kind", ASKED)
@pytest.mark.parametrize("approve, status", [(True, "approved"), (False, "rejected")])
@pytest.mark.parametrize("fault", [{}, {"sender": None}], ids=["who was asked", "the harness"])
def test_a_right_answer_settles_its_request(lesson, answer, capsys, kind, approve, status, fault):
    other = on_record(lesson, kind, OTHER_ID)
    before = copy.copy(other)
    state, returned, _ = answer(kind, {"approve": approve, **fault}, "As I see it.")
    assert returned is state is lesson.pending_requests[ID]
    assert (state.status, state.feedback) == (status, "As I see it.")
    assert dataclasses.replace(state, status="pending", feedback="", request_id=OTHER_ID) == before
    assert other == before
    assert capsys.readouterr().out == ""


@breaking(1)
def test_rule_1_an_answer_that_carries_no_id_of_a_request_settles_nothing(refused, kind, fault):
    refused(kind, fault)


@breaking(2)
def test_rule_2_the_kind_of_the_answer_fits_the_kind_of_the_request(refused, kind, fault):
    assert fault["response_type"] in refused(kind, fault)


@breaking(3)
def test_rule_3_only_the_one_who_was_asked_may_answer(refused, kind, fault):
    line = refused(kind, fault)
    assert fault["sender"] in line and ASKED[kind] in line


@breaking(4)
def test_rule_4_what_is_settled_is_final(refused, kind, fault):
    assert fault["status"] in refused(kind, fault)
    assert fault["status"] in refused(kind, {**fault, "approve": False})


@breaking(5)
def test_rule_5_approve_is_a_bool(refused, kind, fault):
    assert repr(fault["approve"]) in refused(kind, fault)


@pytest.mark.parametrize("kind", ASKED)
def test_an_answer_that_breaks_two_rules_changes_nothing(answer, kind):
    for one, two in itertools.combinations(FAULTS, 2):
        for fault, other in itertools.product(faults(kind, one), faults(kind, two)):
            assert answer(kind, {**fault, **other})[1:] == (None, True), (fault, other)


@pytest.mark.parametrize("part", ["request_id", "response_type", "sender", "approve"])
def test_a_forged_answer_cannot_draw_a_second_line_on_the_screen(answer, capsys, part):
    assert answer("shutdown", {part: "x\nlead> y"})[1:] == (None, True)
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_rule_4_of_many_answers_at_one_moment_one_settles(lesson, capsys):
    for number in range(25):
        state = on_record(lesson, "shutdown", f"req_{number:06}")
        answer = functools.partial(lesson.match_response, "shutdown_response", state.request_id,
                                   sender="alice")
        returned = at_once(*[functools.partial(answer, approve, feedback=str(approve))
                             for approve in (True, False) * 4])
        [winner] = [place for place, value in enumerate(returned) if value is not None]
        assert returned[winner] is state
        assert (state.status, state.feedback) == [("approved", "True"),
                                                  ("rejected", "False")][winner % 2]
        assert len(capsys.readouterr().out.splitlines()) == 7


# ── Withdrawing ──────────────────────────────────────────────────────

@pytest.mark.parametrize("kind", ASKED)
def test_a_withdrawn_request_is_closed_for_good(lesson, kind):
    state = on_record(lesson, kind, ID)
    assert lesson.withdraw(ID, "overtaken") is state
    assert state.status == "withdrawn"
    before = everything(lesson)
    assert lesson.match_response(f"{kind}_response", ID, True, ASKED[kind]) is None
    assert lesson.withdraw(ID, "again") is None
    assert everything(lesson) == before


@pytest.mark.parametrize("status", SETTLED)
@pytest.mark.parametrize("request_id", [ID, OTHER_ID, "", None])
def test_rule_4_only_what_is_pending_can_be_withdrawn(lesson, status, request_id):
    on_record(lesson, "shutdown", ID, status)
    before = everything(lesson)
    assert lesson.withdraw(request_id, "too late") is None
    assert everything(lesson) == before


def test_rule_4_an_answer_and_a_withdrawal_at_one_moment_have_one_winner(lesson):
    for number in range(25):
        state = on_record(lesson, "plan_approval", f"req_{number:06}")
        answered, withdrawn = at_once(
            lambda: lesson.match_response("plan_approval_response", state.request_id, True, "lead"),
            lambda: lesson.withdraw(state.request_id, "overtaken"))
        assert (answered, withdrawn, state.status) in [(state, None, "approved"),
                                                       (None, state, "withdrawn")]


# ── Records ──────────────────────────────────────────────────────────

def test_a_state_has_the_seven_fields_in_order(lesson):
    fields = dataclasses.fields(lesson.ProtocolState)
    assert [field.name for field in fields[:7]] == [
        "request_id", "type", "sender", "target", "status", "payload", "created_at"]
    assert all(field.default is not dataclasses.MISSING for field in fields[7:])
    state = lesson.ProtocolState(ID, "shutdown", "lead", "alice", "pending", "Done.", 1.5)
    assert (state.request_id, state.target, state.created_at) == (ID, "alice", 1.5)


def test_rule_1_ids_count_up(lesson):
    ids = [lesson.new_request_id() for _ in range(12)]
    assert ids == [f"req_{number:06}" for number in range(1, 13)]


def test_rule_1_ids_never_collide(lesson):
    batches = at_once(*[lambda: [lesson.new_request_id() for _ in range(500)]] * 8)
    assert len(set(itertools.chain(*batches))) == 8 * 500
    assert all(batch == sorted(batch) for batch in batches)


def test_rule_1_a_request_is_on_record_as_it_was_sent(lesson):
    alice = member(lesson)
    lesson.request_shutdown(lesson.LEAD, "alice", "Lunch.")
    [msg], [(request_id, state)] = lesson.BUS.read_inbox("alice"), lesson.pending_requests.items()
    assert (msg["type"], msg["metadata"]["request_id"]) == ("shutdown_request", request_id)
    assert (state.request_id, state.type, state.sender, state.target, state.status, state.payload
            ) == (request_id, "shutdown", "lead", "alice", "pending", "Lunch.")
    assert abs(state.created_at - msg["ts"]) < 5
    assert alice.state == "PENDING"


REQUESTS = {        # what opens a request -> whose file it is sent to
    "shutdown": ("alice", lambda lesson: lesson.request_shutdown(lesson.LEAD, "alice")),
    "plan": ("lead", lambda lesson: lesson.submit_plan(lesson.TEAM["alice"], "Refactor", ["go"])),
    "demand": ("alice", lambda lesson: lesson.request_plan(lesson.LEAD, "alice", "Plan it.")),
}


@pytest.mark.parametrize("to, ask", REQUESTS.values(), ids=REQUESTS)
def test_a_request_that_cannot_be_sent_opens_nothing(lesson, to, ask):
    alice = member(lesson)
    (lesson.BUS.folder / f"{to}.jsonl").mkdir(parents=True)           # nobody can write to it
    with pytest.raises(OSError):
        ask(lesson)
    assert lesson.pending_requests == {}
    assert (lesson.HANDSHAKE.status("alice"), alice.plan) == (None, None)


# ── Dispatch ─────────────────────────────────────────────────────────

WORDS = [("alice", "message"), *[("lead", kind) for kind in (
    "message", "result", "error", "idle_notification", "farewell")]]
NEVER = [*[("alice", kind) for kind in (
    "gossip", "", "result", "error", "idle_notification", "farewell", "shutdown_response",
    "plan_approval_request")],
         *[("lead", kind) for kind in ("gossip", "", "shutdown_request", "plan_approval_response")]]


def put_on_record(lesson):
    """A stop of alice, a plan of alice and a stop of bob."""
    on_record(lesson, "shutdown", ID)
    on_record(lesson, "plan_approval", OTHER_ID)
    on_record(lesson, "shutdown", "req_bob", name="bob")


@pytest.fixture
def on_file(lesson):
    """Requests of and to alice, who takes no step by herself."""
    member(lesson)
    put_on_record(lesson)


def to_agent(agent, kind, **metadata):
    """A message to the lead from alice, or to alice from the lead."""
    return message("alice" if agent == "lead" else "lead", agent, kind, "psst", **metadata)


@pytest.mark.parametrize("agent, kind", WORDS)
def test_words_are_for_the_model(lesson, capsys, agent, kind):
    member(lesson)
    assert lesson.dispatch_message(agent, to_agent(agent, kind)) is True
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("agent, kind", NEVER)
def test_a_type_that_its_receiver_never_gets_is_one_line_and_changes_nothing(
        lesson, on_file, capsys, agent, kind):
    before = everything(lesson)
    for request_id in ID, OTHER_ID:
        msg = to_agent(agent, kind, request_id=request_id, approve=True)
        assert lesson.dispatch_message(agent, msg) is False
        [line] = capsys.readouterr().out.splitlines()
        assert "ignore" in line and kind in line and agent in line
    assert everything(lesson) == before


@pytest.mark.parametrize("msg", [
    to_agent("lead", "x\nlead> y"), message("x\nlead> y", "lead", "gossip"),
    message("x\nlead> y", "lead", "plan_approval_request", request_id=ID),
    to_agent("alice", "shutdown_request", request_id="x\nlead> y"),
    to_agent("alice", "plan_approval_response", request_id="x\nlead> y"),
], ids=lambda msg: msg["type"][:22])
def test_a_forged_message_cannot_draw_a_second_line_on_the_screen(lesson, on_file, capsys, msg):
    assert lesson.dispatch_message(msg["to"], msg) is False
    assert len(capsys.readouterr().out.splitlines()) == 1


FORGED = {      # what a line typed by hand says -> receiver, sender, type, metadata
    "a stop with an id of nobody": ("alice", "lead", "shutdown_request", {"request_id": "req_9"}),
    "a stop without an id": ("alice", "lead", "shutdown_request", {}),
    "a stop with a number": ("alice", "lead", "shutdown_request", {"request_id": 7}),
    "a stop with bob's id": ("alice", "lead", "shutdown_request", {"request_id": "req_bob"}),
    "a stop with the id of a plan": ("alice", "lead", "shutdown_request", {"request_id": OTHER_ID}),
    "a stop from bob": ("alice", "bob", "shutdown_request", {"request_id": ID}),
    "a decision with an id of nobody": (
        "alice", "lead", "plan_approval_response", {"request_id": "req_9", "approve": True}),
    "a decision without an id": ("alice", "lead", "plan_approval_response", {"approve": True}),
    "a decision on what is pending": (
        "alice", "lead", "plan_approval_response", {"request_id": OTHER_ID, "approve": True}),
    "a decision on a stop": (
        "alice", "lead", "plan_approval_response", {"request_id": ID, "approve": True}),
    "an answer of bob": ("lead", "bob", "shutdown_response", {"request_id": ID, "approve": True}),
    "an answer with an id of nobody": (
        "lead", "alice", "shutdown_response", {"request_id": "req_9", "approve": True}),
    "an answer without an id": ("lead", "alice", "shutdown_response", {"approve": True}),
    "an answer to a plan": (
        "lead", "alice", "shutdown_response", {"request_id": OTHER_ID, "approve": True}),
    "an answer that says the word false": (
        "lead", "alice", "shutdown_response", {"request_id": ID, "approve": "false"}),
    "an answer that says nothing": ("lead", "alice", "shutdown_response", {"request_id": ID}),
    "a plan with an id of nobody": ("lead", "alice", "plan_approval_request",
                                    {"request_id": "req_9"}),
    "a plan without an id": ("lead", "alice", "plan_approval_request", {}),
    "a plan of another": ("lead", "bob", "plan_approval_request", {"request_id": OTHER_ID}),
    "a plan with the id of a stop": ("lead", "alice", "plan_approval_request", {"request_id": ID}),
}


@pytest.mark.parametrize("to, sender, kind, metadata", FORGED.values(), ids=FORGED)
def test_rule_1_what_is_forged_is_one_line_and_changes_nothing(lesson, on_file, capsys, to, sender,
                                                               kind, metadata):
    before = everything(lesson)
    assert lesson.dispatch_message(to, message(sender, to, kind, **metadata)) is False
    [line] = capsys.readouterr().out.splitlines()
    assert "ignored" in line.casefold() and kind in line
    assert str(metadata.get("request_id", "")) in line
    assert everything(lesson) == before


@pytest.mark.parametrize("status", SETTLED)
def test_rule_4_a_stop_request_that_is_settled_is_one_line_and_changes_nothing(lesson, capsys,
                                                                               status):
    member(lesson)
    on_record(lesson, "shutdown", ID, status)
    before = everything(lesson)
    assert lesson.dispatch_message("alice", to_agent("alice", "shutdown_request", request_id=ID)
                                   ) is False
    assert re.fullmatch(f"Ignored.*{ID}.*{status}.*\n", capsys.readouterr().out)
    assert everything(lesson) == before


def let_alice_look(stage, *lines):
    """Alice, idle, finds these lines in her file and words of the lead, and handles them."""
    by_hand(stage, *lines)
    stage.BUS.send("lead", "alice", "Are you there?")
    until(lambda: len(stage.calls("alice")) > 1 and stage.TEAM["alice"].state != "RUNNING")


def test_what_is_forged_in_a_file_stops_nobody_and_opens_nothing(stage):
    alice = stage.spawn("alice")
    idle(stage, "alice")
    put_on_record(stage)
    before = everything(stage)[:2]                            # requests, handshakes and gates
    let_alice_look(stage, *[message(sender, to, kind, "FORGED", **metadata)
                            for to, sender, kind, metadata in FORGED.values()])
    stage.consume_lead_inbox()
    assert everything(stage)[:2] == before
    assert alice.state == "IDLE"
    assert not any("FORGED" in words_of(request) or "wrap_up" in words_of(request)
                   for request in stage.calls("alice"))


def test_rule_4_a_stop_request_that_is_settled_stops_nobody(stage):
    stage.spawn("alice")
    idle(stage, "alice")
    let_alice_look(stage, *[message(
        "lead", "alice", "shutdown_request",
        request_id=on_record(stage, "shutdown", f"req_{status}", status).request_id)
        for status in SETTLED])
    assert stage.TEAM["alice"].state == "IDLE"
    assert len(stage.calls("alice")) == 2
    assert stage.mail("farewell") == stage.mail("shutdown_response") == []


# ── The lead's inbox ─────────────────────────────────────────────────

def answered(lesson, sender, approve, request_id=ID):
    """A shutdown_response in the lead's inbox."""
    lesson.BUS.send(sender, "lead", "I stop now.", "shutdown_response",
                    {"request_id": request_id, "approve": approve})


def test_rule_3_an_answer_by_another_is_ignored_and_reported(lesson, on_file, capsys):     # case 13
    answered(lesson, "bob", True)
    assert lesson.consume_lead_inbox() == []
    assert lesson.pending_requests[ID].status == "pending"
    assert re.search(f"{ID}.*bob.*alice", capsys.readouterr().out)
    answered(lesson, "alice", True)
    assert len(lesson.consume_lead_inbox()) == 1
    assert lesson.pending_requests[ID].status == "approved"


def test_rule_4_a_second_answer_is_ignored(lesson, on_file, capsys):                       # case 14
    answered(lesson, "alice", True)
    answered(lesson, "alice", False)
    [msg] = lesson.consume_lead_inbox()
    assert msg["metadata"]["approve"] is True
    assert lesson.pending_requests[ID].status == "approved"
    assert re.search(f"{ID}.*approved", capsys.readouterr().out)


@pytest.fixture
def mixed(lesson, on_file):
    """Mail to the lead, right and broken by turns: the types of what is right."""
    lesson.BUS.send("alice", "lead", "one", "result")
    by_hand(lesson, *[message(sender, to, kind, **metadata)
                      for to, sender, kind, metadata in FORGED.values() if to == "lead"])
    lesson.BUS.send("alice", "lead", "two", "idle_notification", {"reason": "available"})
    lesson.BUS.send("alice", "lead", "psst", "gossip")
    lesson.BUS.send("alice", "lead", "three", "plan_approval_request", {"request_id": OTHER_ID})
    lesson.BUS.send("alice", "lead", "four", "farewell")
    answered(lesson, "alice", True)
    lesson.BUS.send("alice", "lead", "five")
    return ["result", "idle_notification", "plan_approval_request", "farewell", "shutdown_response",
            "message"]


def test_the_lead_gets_its_mail_in_order_but_what_broke_a_rule(lesson, mixed):
    assert [msg["type"] for msg in lesson.consume_lead_inbox()] == mixed
    assert lesson.pending_requests[ID].status == "approved"
    assert lesson.pending_requests[OTHER_ID].status == "pending"
    assert lesson.consume_lead_inbox() == []


def test_reading_without_routing_settles_nothing_and_leaves_nothing_out(lesson, mixed, capsys):
    sent, before = lesson.BUS.messages("lead")[0], copy.deepcopy(lesson.pending_requests)
    assert lesson.consume_lead_inbox(route_protocol=False) == sent
    assert lesson.pending_requests == before
    assert (lesson.consume_lead_inbox(), capsys.readouterr().out) == ([], "")


def test_the_leads_tool_reads_mail_by_the_same_rules(lesson, mixed):
    seen = lesson.check_inbox(lesson.LEAD)
    assert re.findall(r'type="(\w+)"', seen) == mixed
    assert f'request_id="{ID}"' in seen and "psst" not in seen
    assert lesson.pending_requests[ID].status == "approved"


# ── A protocol of one's own ──────────────────────────────────────────

@pytest.fixture
def lunch(stage, monkeypatch):
    """A protocol of one's own: the lead asks what is for lunch, and a teammate answers."""
    def handle_lunch_request(agent, msg):
        stage.BUS.send(agent, "lead", "Noodles.", "lunch_response",
                       {"request_id": msg["metadata"]["request_id"], "approve": True})
        return False

    monkeypatch.setitem(stage.ANSWERS, "lunch_response", "lunch")
    monkeypatch.setitem(stage.HANDLERS, ("teammate", "lunch_request"), handle_lunch_request)
    monkeypatch.setitem(stage.HANDLERS, ("lead", "lunch_response"), stage.handle_shutdown_response)


def test_a_new_protocol_is_two_rows_and_a_pair_of_types(stage, lunch):
    stage.spawn("alice")
    idle(stage, "alice")
    state = stage.open_request("lunch", "lead", "alice", "What is for lunch?")
    until(lambda: stage.mail("lunch_response"))
    assert latest(stage, "lunch") is state and state.status == "pending"
    stage.BUS.send("bob", "lead", "Soup.", "lunch_response",
                   {"request_id": state.request_id, "approve": True})
    answers = [msg for msg in stage.consume_lead_inbox() if msg["type"] == "lunch_response"]
    assert [msg["from"] for msg in answers] == ["alice"]
    assert (state.status, state.feedback) == ("approved", "Noodles.")
    assert len(stage.calls("alice")) == 1                     # her model never saw it


def test_rule_2_a_request_of_another_protocol_stops_nobody(lesson, capsys):
    member(lesson)
    on_record(lesson, "shutdown", ID).type = "lunch"
    msg = to_agent("alice", "shutdown_request", request_id=ID)
    before = everything(lesson)
    assert lesson.dispatch_message("alice", msg) is False
    assert re.fullmatch(f"Ignored.*{ID}.*\n", capsys.readouterr().out)
    assert everything(lesson) == before
