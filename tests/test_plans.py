"""Plan approval: a plan waits for its decision; until it is approved the gate is closed."""

import re

import pytest
from conftest import LIMIT, Task, asleep, call, results_of, until, words_of
from protocols import (at_once, by_hand, come_to_rest, everything, latest, member, message,
                       on_record)
from test_teammate import contents, idle, in_mid_call, types, write_to

LESSON = "s16"

PLAN = call("submit_plan", title="Refactor auth", steps=["Extract a codec", "Move the callers"],
            rationale="The old one cannot grow.")
WRITE = call("write_file", path="auth.py", content="new")
BASH = call("bash", command="echo > ran.txt")
NO_PLAN = "plan must be approved first"


def approve(state):
    """The decider that says yes."""
    return True, ""


def reject(state):
    """The decider that says no, and why."""
    return False, "Use the cache."


def submitted(lesson, name="alice", title="Refactor auth"):
    """A plan of a teammate that has no thread of its own: the waiting call, and its record."""
    alice = lesson.TEAM.get(name) or member(lesson, name)
    known = len(lesson.pending_requests)
    task = Task(lesson.submit_plan, alice, title, PLAN["input"]["steps"], "Why not.")
    until(lambda: len(lesson.pending_requests) > known and asleep(task))
    return task, latest(lesson, "plan_approval", name)


def waiting(stage, name="alice"):
    """Wait until a teammate sleeps on a plan; its record."""
    def pending():
        state = stage.pending_requests.get(stage.TEAM[name].plan)
        return state and state.status == "pending" and state

    return until(pending)


def decided(stage, decider):
    """Wait until alice sleeps on a plan, and decide it; its record."""
    state = waiting(stage)
    assert stage.review_plans(decider) == 1
    return state


def with_plan_required(stage, *answers):
    """Alice, who may do nothing before a plan of hers is approved."""
    stage.play(alice=answers)
    stage.spawn_teammate(stage.LEAD, "alice", "tester", "Refactor auth.", plan_required=True)
    return stage.TEAM["alice"]


def only_result(stage, number):
    """The one result of a tool that alice's call of this number brings."""
    [result] = results_of(stage.calls("alice")[number])
    return result


def written(stage):
    return (stage.workspace / "auth.py").exists()


# ── Submitting ───────────────────────────────────────────────────────

def test_a_plan_is_on_record_and_before_the_lead_as_it_was_submitted(lesson):
    _, state = submitted(lesson)
    assert (state.type, state.sender, state.target, state.status) == (
        "plan_approval", "alice", "lead", "pending")
    assert lesson.TEAM["alice"].plan == state.request_id
    for words in "Refactor auth", "Why not.", "1. Extract a codec", "2. Move the callers":
        assert words in state.payload
    [msg] = lesson.BUS.read_inbox("lead")
    assert (msg["from"], msg["type"], msg["content"]) == (
        "alice", "plan_approval_request", state.payload)
    assert msg["metadata"] == {
        "request_id": state.request_id, "title": "Refactor auth", "rationale": "Why not.",
        "steps": ["Extract a codec", "Move the callers"]}


@pytest.mark.parametrize("steps", [
    "Extract a codec\nMove the callers", "Extract a codec\r\n\n  Move the callers  \n",
    ["Extract a codec", "", "Move the callers"]])
def test_steps_as_one_text_are_split_into_lines(lesson, steps):
    task = Task(lesson.submit_plan, member(lesson), "Refactor", steps)
    until(lambda: lesson.pending_requests)
    [msg] = lesson.BUS.read_inbox("lead")
    assert msg["metadata"]["steps"] == ["Extract a codec", "Move the callers"]
    lesson.review_plans(approve)
    assert "approved" in task.result()


NO_PLANS = [        # arguments of submit_plan that make no plan
    {}, {"title": "Refactor"}, {"steps": ["go"]}, {"title": "", "steps": ["go"]},
    {"title": " \n", "steps": ["go"]}, {"title": "Refactor", "steps": []},
    {"title": "Refactor", "steps": ["", " "]}, {"title": "Refactor", "steps": "\n \n"},
    {"title": "Refactor", "steps": 5}, {"title": "Refactor", "steps": None},
    {"title": "Refactor", "steps": {"1": "go"}}, {"title": 5, "steps": ["go"]},
    {"title": None, "steps": ["go"]}, {"title": ["Refactor"], "steps": ["go"]},
    {"title": "Refactor", "steps": ["go"], "rationale": 5},
    {"title": "Refactor", "steps": ["go"], "deadline": "now"},
]


def test_a_plan_that_is_none_is_an_error_and_opens_nothing(stage):
    alice = stage.spawn("alice", [call("submit_plan", **given) for given in NO_PLANS], "done")
    idle(stage, "alice")
    results = results_of(stage.calls("alice")[1])
    faulty = [given for given, result in zip(NO_PLANS, results) if result.get("is_error")]
    assert faulty == NO_PLANS
    assert (stage.pending_requests, alice.plan) == ({}, None)
    assert types(stage) == ["result", "idle_notification"]


@pytest.mark.parametrize("decider, status, told", [
    (approve, "approved", "approved"), (reject, "rejected", "Use the cache.")])
def test_a_decision_makes_one_more_call_that_knows_of_it(stage, decider, status, told):  # case 1
    stage.spawn("alice", [PLAN], "waiting")
    state = decided(stage, decider)
    idle(stage, "alice")
    assert (state.status, len(stage.calls("alice"))) == (status, 2)
    result = only_result(stage, 1)
    assert (told in result["content"], bool(result.get("is_error"))) == (True, status == "rejected")
    assert state.request_id in result["content"]
    assert contents(stage, "result") == ["waiting"]


def test_feedback_of_an_approval_reaches_the_model(stage):
    stage.spawn("alice", [PLAN], "done")
    decided(stage, lambda state: (True, "But keep the old API."))
    idle(stage, "alice")
    assert "But keep the old API." in only_result(stage, 1)["content"]


def test_who_waits_for_a_decision_leaves_its_mail_unread(stage):
    stage.spawn("alice", [PLAN], "done")
    waiting(stage)
    write_to(stage, "alice", "m1")
    stage.spawn("bob")
    idle(stage, "bob")                                        # meanwhile others go on
    assert (len(stage.calls("alice")), stage.BUS.has_mail("alice")) == (1, True)
    stage.review_plans(approve)
    idle(stage, "alice")
    assert words_of(stage.calls("alice")[1]).count("m1") == 1


def test_the_record_wakes_the_waiter_at_once(lesson, monkeypatch):
    monkeypatch.setattr(lesson, "LOOK_AGAIN", 10 * LIMIT)
    task, state = submitted(lesson)
    lesson.match_response("plan_approval_response", state.request_id, True, "lead")
    assert "approved" in task.result()                        # no message has told it


def test_a_rejected_plan_is_revised_and_approved(stage):
    with_plan_required(stage, [PLAN], [PLAN], [WRITE], "done")
    for decider, number in (reject, 1), (approve, 2):
        decided(stage, decider)
        until(lambda: len(stage.calls("alice")) > number)
    idle(stage, "alice")
    rejected, approved, wrote = (only_result(stage, number) for number in (1, 2, 3))
    assert rejected["is_error"] and "Use the cache." in rejected["content"]
    assert not approved.get("is_error") and not wrote.get("is_error")
    assert [state.status for state in stage.pending_requests.values()] == ["rejected", "approved"]
    assert written(stage)


# ── The gate ─────────────────────────────────────────────────────────

GUARDED, FREE = {"write_file", "bash"}, {"read_file", "send_message", "list_teammates"}
CALLS = [WRITE, BASH, call("read_file", path="notes.txt"), call("list_teammates"),
         call("send_message", to="lead", content="psst")]
PLACES = {"alone": CALLS, "before a plan": [*CALLS, PLAN], "behind a plan": [PLAN, *CALLS]}
REFUSED = {     # what alice's plan has come to -> what is refused where it stands alone
    None: set(), "": GUARDED, "pending": GUARDED, "rejected": GUARDED, "withdrawn": GUARDED,
    "approved": set(),
}


def refused(request):
    """The names of the tools that were refused in the last answer, and of those that were not."""
    [*_, answer, _] = request["messages"]
    tools = {True: set(), False: set()}
    for block, result in zip(answer["content"], results_of(request), strict=True):
        tools[bool(result.get("is_error"))].add(block["name"])
        assert not result.get("is_error") or NO_PLAN in result["content"]
    return tools[True], tools[False] - {"submit_plan"}


@pytest.mark.parametrize("place", PLACES)
def test_rule_6_only_an_approved_plan_opens_the_gate(stage, monkeypatch, place):
    monkeypatch.setattr(stage.lesson, "ALLOW_ALL", True)
    (stage.workspace / "notes.txt").write_text("notes")

    def with_plan(status):              # runs while alice waits for her model
        def answer(request):
            state = status and on_record(stage, "plan_approval", f"req_{status}", status)
            stage.TEAM["alice"].plan = state and state.request_id
            return PLACES[place]
        return answer

    def own_plan():                     # the one that she submits herself
        state = waiting(stage)
        return "Refactor auth" in state.payload and state

    stage.spawn("alice", *map(with_plan, REFUSED), "done")
    for _ in REFUSED if PLAN in PLACES[place] else []:
        stage.review_plan(stage.LEAD, until(own_plan).request_id, approve=True)
    idle(stage, "alice")
    for (plan, closed), request in zip(REFUSED.items(), stage.calls("alice")[1:], strict=True):
        closed = closed if place == "alone" else GUARDED
        assert refused(request) == (closed, FREE | GUARDED - closed), plan
    assert written(stage) == (stage.workspace / "ran.txt").exists() == (place == "alone")


@pytest.mark.parametrize("calls, places", [                                          # case 7
    ([PLAN, WRITE], (0, 1)), ([WRITE, PLAN], (1, 0))], ids=["plan first", "write first"])
def test_rule_6_a_write_beside_a_plan_is_refused_and_later_succeeds(stage, calls, places):
    with_plan_required(stage, calls, [WRITE], "done")
    decided(stage, approve)
    idle(stage, "alice")
    results = results_of(stage.calls("alice")[1])
    plan, write = (results[place] for place in places)
    assert len(results) == 2
    assert "approved" in plan["content"] and not plan.get("is_error")
    assert write["is_error"] and NO_PLAN in write["content"]
    assert not only_result(stage, 2).get("is_error")
    assert written(stage)


def test_rule_6_what_needs_a_plan_is_refused_before_there_is_one(stage, monkeypatch):
    monkeypatch.setattr(stage.lesson, "ALLOW_ALL", True)
    with_plan_required(stage, [WRITE, BASH], "done")
    idle(stage, "alice")
    results = results_of(stage.calls("alice")[1])
    assert [NO_PLAN in result["content"] and result["is_error"] for result in results] == [True] * 2
    assert (written(stage), (stage.workspace / "ran.txt").exists()) == (False, False)
    assert stage.pending_requests == {}


def test_rule_6_the_latest_plan_decides(stage):
    stage.spawn("alice", [PLAN], [PLAN], [WRITE], "done")
    for decider, number in (approve, 1), (reject, 2):
        decided(stage, decider)
        until(lambda: len(stage.calls("alice")) > number)
    idle(stage, "alice")
    assert NO_PLAN in only_result(stage, 3)["content"] and not written(stage)


def test_an_approved_plan_does_not_answer_for_a_commands_permission(stage):
    with_plan_required(stage, [PLAN], [BASH], "done")
    decided(stage, approve)
    until(stage.BROKER.waiting)
    assert stage.BROKER.resolve_all(lambda question: "n") == 1
    idle(stage, "alice")
    assert "not allow" in only_result(stage, 2)["content"]
    assert not (stage.workspace / "ran.txt").exists()


def test_rule_6_a_refused_command_asks_nobody_for_permission(stage):
    with_plan_required(stage, [BASH], "done")
    idle(stage, "alice")
    assert stage.BROKER.resolve_all(lambda question: pytest.fail("nobody had a question")) == 0


def test_allowing_commands_approves_no_plan(stage, monkeypatch):
    monkeypatch.setattr(stage.lesson, "ALLOW_ALL", True)
    with_plan_required(stage, [PLAN, BASH], [BASH], "done")
    decided(stage, reject)                                     # it was still pending
    idle(stage, "alice")
    assert not (stage.workspace / "ran.txt").exists()


def test_rule_6_the_gate_is_closed_in_a_wrap_up_too(stage):
    alice = with_plan_required(stage, "done", [WRITE], "bye")
    idle(stage, "alice")
    stage.request_shutdown(stage.LEAD, "alice")
    until(lambda: alice.ended)
    assert NO_PLAN in only_result(stage, 2)["content"]
    assert not written(stage)


def test_a_plan_of_an_old_teammate_opens_nothing_for_a_new_one(stage):
    old = with_plan_required(stage, [PLAN], "done")
    decided(stage, approve)
    idle(stage, "alice")
    old.stop()
    until(lambda: old.ended)
    with_plan_required(stage, [WRITE], "done")
    idle(stage, "alice")
    assert not written(stage)


# ── Asking for a plan ────────────────────────────────────────────────

def test_rule_6_a_plan_can_be_asked_of_one_who_is_idle(stage):
    stage.spawn("alice", "ready", [WRITE], [PLAN], [WRITE], "done")
    idle(stage, "alice")
    stage.request_plan(stage.LEAD, "alice", "Refactor auth with care.")
    waiting(stage)
    assert not written(stage)
    assert "Refactor auth with care." in words_of(stage.calls("alice")[1])
    assert NO_PLAN in only_result(stage, 2)["content"]
    stage.review_plans(approve)
    idle(stage, "alice")
    assert written(stage)


def test_rule_6_a_plan_can_be_asked_of_one_in_the_middle_of_its_turn(stage):
    _, held = in_mid_call(stage, [WRITE])
    stage.request_plan(stage.LEAD, "alice", "Refactor auth with care.")
    held.free.set()
    idle(stage, "alice")
    assert not written(stage)
    assert NO_PLAN in only_result(stage, 1)["content"]
    assert "Refactor auth with care." in words_of(stage.calls("alice")[1])


def test_rule_6_an_earlier_approval_does_not_answer_a_new_demand(stage):
    stage.spawn("alice", [PLAN], "done", [WRITE], "done")
    decided(stage, approve)
    idle(stage, "alice")
    stage.request_plan(stage.LEAD, "alice", "And now the tests.")
    until(lambda: len(stage.calls("alice")) == 4)
    assert NO_PLAN in only_result(stage, 3)["content"] and not written(stage)


def test_a_plan_asked_of_nobody_is_an_error_that_changes_nothing(stage):
    names = ["ghost", "", "lead", "carol"]
    carol = stage.spawn("carol")
    carol.stop()
    stage.spawn("alice")
    until(lambda: carol.ended)
    idle(stage, "alice")
    before = everything(stage)
    stage.play(lead=[[call("request_plan", teammate=name, task="Plan it.") for name in names]])
    stage.say("Ask for plans.")
    for name, result in zip(names, results_of(stage.calls("lead")[1]), strict=True):
        assert result["is_error"] and f"'{name}'" in result["content"]
        assert "alice" in result["content"]
    assert everything(stage) == before


# ── Stops and ends ───────────────────────────────────────────────────

def test_a_stop_withdraws_a_plan_that_waits(stage, monkeypatch):
    monkeypatch.setattr(stage.lesson, "LOOK_AGAIN", 10 * LIMIT)
    alice = stage.spawn("alice", [PLAN], "done", "bye")
    state = waiting(stage)
    stage.request_shutdown(stage.LEAD, "alice")
    until(lambda: alice.ended)
    assert (alice.state, state.status) == ("COMPLETED", "withdrawn")
    result = only_result(stage, 1)
    assert result["is_error"] and "asked to stop" in result["content"]
    assert contents(stage, "result") == ["done"] and contents(stage, "farewell") == ["bye"]
    assert stage.review_plans(lambda state: pytest.fail("nothing waits")) == 0
    stage.consume_lead_inbox()
    assert latest(stage, "shutdown").status == "approved"


def test_a_plan_that_a_stop_has_overtaken_is_put_before_nobody(lesson):
    task, _ = submitted(lesson)
    with lesson.LOCK:                                         # alice cannot wake yet
        lesson.request_shutdown(lesson.LEAD, "alice")
        assert lesson.review_plans(lambda state: pytest.fail("it is overtaken")) == 0
    with pytest.raises(InterruptedError, match="asked to stop"):
        task.result()


def test_who_is_asked_to_stop_can_submit_no_plan(stage):
    alice, held = in_mid_call(stage, [PLAN])
    stage.request_shutdown(stage.LEAD, "alice")
    held.free.set()
    until(lambda: alice.ended)
    assert alice.state == "COMPLETED"
    result = only_result(stage, 1)
    assert result["is_error"] and "asked to stop" in result["content"]
    assert [state.type for state in stage.pending_requests.values()] == ["shutdown"]
    assert stage.mail("plan_approval_request") == []


def test_the_end_of_a_teammate_withdraws_its_plan(stage, monkeypatch):
    monkeypatch.setattr(stage.lesson, "LOOK_AGAIN", 10 * LIMIT)
    alice = stage.spawn("alice", [PLAN], "late")
    state = waiting(stage)
    alice.stop()
    until(lambda: alice.ended)
    assert (alice.state, state.status, types(stage)) == (
        "STOPPED", "withdrawn", ["plan_approval_request"])
    assert len(stage.calls("alice")) == 1
    before = everything(stage)
    with pytest.raises(ValueError, match="withdrawn"):
        stage.review_plan(stage.LEAD, state.request_id, approve=True)
    assert everything(stage) == before


def test_rule_4_a_decision_and_a_stop_at_one_moment_have_one_winner(lesson):
    for number in range(10):
        name = f"agent-{number}"
        task, state = submitted(lesson, name)
        at_once(lambda: lesson.review_plans(approve),
                lambda: lesson.request_shutdown(lesson.LEAD, name))
        until(lambda: not task.is_alive())
        assert state.status == ("withdrawn" if task.error else "approved")


# ── Reviews ──────────────────────────────────────────────────────────

def test_plans_are_reviewed_oldest_first_and_each_gets_its_own_decision(lesson):
    names = [f"agent-{number}" for number in range(6)]
    plans, order = [submitted(lesson, name) for name in names], []

    def decide(state):
        order.append(state.sender)
        return len(order) % 2 == 1, state.sender

    assert lesson.review_plans(decide) == 6
    assert order == names
    for number, (task, state) in enumerate(plans):
        if number % 2:
            with pytest.raises(PermissionError, match=names[number]):
                task.result()
        else:
            assert state.request_id in task.result()
        assert (state.status, state.feedback) == (["approved", "rejected"][number % 2],
                                                  names[number])


def test_a_plan_that_arrives_during_a_review_is_decided_in_it(lesson):
    tasks = [submitted(lesson)[0]]

    def decide(state):
        if len(tasks) == 1:
            tasks.append(submitted(lesson, "bob")[0])
        return True, f"for {state.sender}"

    assert lesson.review_plans(decide) == 2
    assert ["for alice" in tasks[0].result(), "for bob" in tasks[1].result()] == [True, True]


def test_there_may_be_many_rounds(lesson):
    for number in range(5):
        task, _ = submitted(lesson)
        assert lesson.review_plans(lambda state: (True, f"round {number}")) == 1
        assert f"round {number}" in task.result()
    assert len(lesson.pending_requests) == 5
    assert lesson.review_plans(lambda state: pytest.fail("nothing waits")) == 0


def test_a_decider_that_is_interrupted_leaves_the_plan_waiting(lesson):
    task, _ = submitted(lesson)

    def interrupted(state):
        raise KeyboardInterrupt

    before = everything(lesson)
    with pytest.raises(KeyboardInterrupt):
        lesson.review_plans(interrupted)
    assert (everything(lesson), task.is_alive()) == (before, True)
    assert lesson.review_plans(approve) == 1
    assert "approved" in task.result()


def test_a_plan_that_is_withdrawn_while_the_decider_thinks_is_not_approved(lesson, capsys):
    task, state = submitted(lesson)

    def decide(state):
        lesson.request_shutdown(lesson.LEAD, "alice")
        until(lambda: not task.is_alive())
        return True, ""

    assert lesson.review_plans(decide) == 0
    assert state.status == "withdrawn"
    with pytest.raises(InterruptedError, match="asked to stop"):
        task.result()
    [line] = capsys.readouterr().out.splitlines()
    assert state.request_id in line and "withdrawn" in line


@pytest.mark.parametrize("answer", ["false", "true", 1, 0, None, []])
def test_rule_5_a_decider_that_does_not_say_true_approves_nothing(lesson, answer):
    task, state = submitted(lesson)
    lesson.review_plans(lambda state: (answer, ""))
    assert state.status == "rejected"
    with pytest.raises(PermissionError):
        task.result()


# ── The lead decides ─────────────────────────────────────────────────

def reviewed(stage, *decisions):
    """What the lead's model gets to hear of these decisions, none of which may count."""
    before = everything(stage)
    stage.play(lead=[[call("review_plan", **arguments) for arguments in decisions]])
    stage.say("Decide.")
    results = results_of(stage.calls("lead")[-1])
    assert all(result["is_error"] for result in results) and everything(stage) == before
    return [result["content"] for result in results]


def test_a_decision_of_the_lead_that_does_not_count_is_told_why(stage):
    statuses = ["approved", "rejected", "withdrawn"]
    ids = [on_record(stage, "plan_approval", f"req_{number}", status).request_id
           for number, status in enumerate(statuses)]
    for answer in True, False:
        said = reviewed(stage, *[{"request_id": request_id, "approve": answer}
                                 for request_id in [*ids, "req_999999"]])
        for words, line in zip([*statuses, "no|unknown"], said, strict=True):
            assert re.search(words, line)


def test_rule_2_the_lead_is_told_that_a_stop_is_no_plan(stage):
    on_record(stage, "shutdown", "req_000007")
    [said] = reviewed(stage, {"request_id": "req_000007", "approve": True})
    assert re.search("shutdown|no plan", said) and "req_000007" in said


def test_rule_5_the_lead_decides_with_a_bool(stage):
    on_record(stage, "plan_approval", "req_000007")
    said = reviewed(stage, *[{"request_id": "req_000007", **given} for given in (
        {"approve": "false"}, {"approve": "true"}, {"approve": 1}, {"approve": None}, {})])
    assert all("approve" in line for line in said)


def test_rule_4_the_lead_and_the_person_at_one_moment_make_one_decision(lesson, capsys):  # case 27
    def the_lead_approves():
        try:
            return lesson.review_plan(lesson.LEAD, state.request_id, True, "Go.")
        except ValueError as error:
            return str(error)

    for _ in range(20):
        task, state = submitted(lesson)
        said, reviewed = at_once(the_lead_approves, lambda: lesson.review_plans(reject))
        if state.status == "approved":
            assert "Go." in task.result() and reviewed == 0
        else:
            with pytest.raises(PermissionError, match="Use the cache."):
                task.result()
            assert reviewed == 1 and "already" in said
        assert state.status in said
        [answer] = lesson.BUS.read_inbox("alice")
        assert answer["metadata"] == {"request_id": state.request_id,
                                      "approve": state.status == "approved"}
        [line] = capsys.readouterr().out.splitlines() or [f"{state.status} in time"]
        assert state.status in line                           # who came second is told so


def test_the_record_decides_before_the_message_tells(lesson):
    _, state = submitted(lesson)
    seen = []
    listener = Task(lambda: seen.append((lesson.BUS.receive("alice", LIMIT), state.status)))
    until(lambda: asleep(listener))
    lesson.review_plan(lesson.LEAD, state.request_id, True, "Go.")
    listener.result()
    [([msg], status)] = seen
    assert (msg["from"], msg["type"], msg["content"]) == ("lead", "plan_approval_response", "Go.")
    assert status == "approved"


def test_the_lead_sees_a_plan_and_may_decide_it_if_it_was_told_to(stage, typed, capsys):
    def decide(request):
        [request_id] = re.findall(r'type="plan_approval_request" request_id="(\w+)"',
                                  words_of(request))
        assert "1. Extract a codec" in words_of(request)
        return [call("review_plan", request_id=request_id, approve=True, feedback="Go.")]

    typed()
    with_plan_required(stage, [PLAN], [WRITE], "It is refactored.")
    waiting(stage)
    stage.play(lead=[decide, "I approved it.", "All done."])
    come_to_rest(stage)
    idle(stage, "alice")
    assert written(stage)
    assert "Go." in only_result(stage, 1)["content"]
    assert "[y]" not in capsys.readouterr().out
    assert "It is refactored." in words_of(stage.calls("lead")[-1])


def test_the_leads_prompt_leaves_plans_to_the_person(stage):
    stage.say("Hello.")
    assert re.search("plan only if the person told you", stage.calls("lead")[0]["system"])


def test_an_approval_that_was_typed_into_a_file_opens_nothing(stage):
    alice = with_plan_required(stage, [PLAN], [WRITE], "done", [WRITE], "done")
    state = waiting(stage)
    by_hand(stage, *[message("lead", "alice", "plan_approval_response", "Go.",
                             request_id=request_id, approve=True)
                     for request_id in (state.request_id, "req_999999", None)])
    write_to(stage, "alice", "Are you there?")
    assert (state.status, len(stage.calls("alice"))) == ("pending", 1)
    stage.review_plans(reject)
    idle(stage, "alice")
    assert NO_PLAN in only_result(stage, 2)["content"]
    write_to(stage, "alice", "And now?")
    until(lambda: len(stage.calls("alice")) == 5)
    assert (state.status, written(stage), alice.plan) == ("rejected", False, state.request_id)


# ── The person decides ───────────────────────────────────────────────

YES, NO = (True, ""), (False, "")
LINES = {
    **dict.fromkeys(["y", "yes", "approve", "Y", "YES", "Approve", " y ", "ｙ", "ＹＥＳ", "是", "同意",
                     "　是　", "y:", "是："], YES),
    **dict.fromkeys(["n", "no", "reject", "N", "NO", "Reject", "\tno", "ｎ", "Ｎｏ", "否", "不", "拒绝",
                     "n:", "ｎ：", "n : "], NO),
    "n: use the cache": (False, "use the cache"),
    "N:Use the Cache": (False, "Use the Cache"),
    "reject: one: two": (False, "one: two"),
    "ｎ：用ＡＰＩ：第２版，Ｇｏ！": (False, "用ＡＰＩ：第２版，Ｇｏ！"),
    "不：先写测试": (False, "先写测试"),
    "拒绝: ① ｌｏｗ": (False, "① ｌｏｗ"),
    "y: but keep the API": (True, "but keep the API"),
    "同意：小心": (True, "小心"),
    **dict.fromkeys(["", " ", ":", "：", "maybe", "yn", "y n", "no way", "n use the cache", "是的",
                     "不是", "ok", "a", "true", "1", "/team plans", "use the cache: n", "no\nyes"],
                    None),
}


def test_a_decision_in_words(lesson):
    assert {line: lesson.parse_decision(line) for line in LINES} == LINES


def test_the_end_of_input_is_a_rejection(lesson):
    approved, feedback = lesson.parse_decision(None)
    assert approved is False and isinstance(feedback, str)


def test_a_plan_stands_before_the_person_in_a_box(lesson, typed, capsys):
    _, state = submitted(lesson)
    typed("y")
    assert lesson.plan_decider(state) == (True, "")
    top, *inside, bottom = re.findall("^[┌│├└].*", capsys.readouterr().out, re.MULTILINE)
    assert "Plan Review" in top and bottom.startswith("└")
    for row, words in zip(inside, ["From: alice", "Title: Refactor auth", "Rationale: Why not.",
                                   "Steps:", "1. Extract a codec", "2. Move the callers"],
                          strict=False):
        assert words in row
    assert "[y]" in "".join(inside) and "[n]" in "".join(inside)


def test_a_title_cannot_break_out_of_the_box(lesson, typed, capsys):
    _, state = submitted(lesson, title="Refactor\n└──\n> y\u2028\x1b[2Jlead> ")
    typed("n")
    assert lesson.plan_decider(state) == (False, "")
    shown = capsys.readouterr().out
    inside = shown[shown.index("┌"):shown.index("[y]")].splitlines()
    assert all(line[0] in "┌│├" for line in inside)
    assert "\x1b" not in shown


def test_what_is_no_decision_is_asked_again(lesson, typed, capsys):
    first, _ = submitted(lesson)
    second, _ = submitted(lesson, "bob")
    typed("", "maybe", "yes please", "ｎ：Use the Cache", "y")
    assert lesson.review_plans(lesson.plan_decider) == 2
    with pytest.raises(PermissionError, match="Use the Cache"):
        first.result()
    assert "approved" in second.result()
    assert capsys.readouterr().out.count("┌") == 2            # the plan itself is shown once


def test_the_end_of_input_rejects_all_that_waits(lesson, typed):
    plans = [submitted(lesson, name) for name in ("alice", "bob")]
    typed("maybe")
    assert lesson.review_plans(lesson.plan_decider) == 2
    assert [state.status for _, state in plans] == ["rejected"] * 2


def test_ctrl_c_at_the_box_leaves_the_plan_waiting(lesson, typed):
    task, state = submitted(lesson)
    typed("^C", "y")
    with pytest.raises(KeyboardInterrupt):
        lesson.review_plans(lesson.plan_decider)
    assert (state.status, task.is_alive()) == ("pending", True)
    assert lesson.review_plans(lesson.plan_decider) == 1
    assert "approved" in task.result()


def test_what_the_lead_leaves_is_put_before_the_person(stage, typed, capsys):
    with_plan_required(stage, [PLAN], [PLAN], [WRITE], "It is refactored.")
    waiting(stage)
    stage.play(lead=["I leave it to you."])
    typed("n: use the cache", "y")
    come_to_rest(stage)
    idle(stage, "alice")
    assert "use the cache" in only_result(stage, 1)["content"]
    assert written(stage)
    shown = capsys.readouterr().out
    assert shown.index("I leave it to you.") < shown.index("┌") and shown.count("┌") == 2
    assert "It is refactored." in words_of(stage.calls("lead")[-1])


def test_two_plans_at_once_are_put_before_the_person_one_after_the_other(stage, typed):
    for name in "alice", "bob":
        stage.spawn(name, [PLAN], "done")
        waiting(stage, name)
    typed("y", "n: not now")
    come_to_rest(stage)
    assert [latest(stage, "plan_approval", name).status for name in ("alice", "bob")] == [
        "approved", "rejected"]
    assert "not now" in results_of(stage.calls("bob")[1])[0]["content"]


def test_the_command_reviews_what_waits_and_says_how_many(lesson, typed, capsys):
    task, state = submitted(lesson)
    lesson.obey("/team list")
    [line] = [line for line in capsys.readouterr().out.splitlines() if state.request_id in line]
    assert "alice" in line
    typed("n: use the cache")
    lesson.obey("/team plans")
    assert capsys.readouterr().out.endswith("1 plan(s) reviewed.\n")
    with pytest.raises(PermissionError, match="use the cache"):
        task.result()
    lesson.obey("/team plans")
    lesson.obey("/team list")
    assert capsys.readouterr().out == "0 plan(s) reviewed.\nalice [PENDING]\n"
