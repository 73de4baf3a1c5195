"""The shutdown handshake: its table of moves, and a stop from the request to the end."""

import functools
import re
import signal
import sys
import threading
import time

import pytest
from conftest import LIMIT, POSIX, Task, asleep, call, results_of, text, until, words_of
from protocols import at_once, by_hand, come_to_rest, everything, latest, member, message
from test_teammate import contents, idle, in_mid_call, refuse, snapshot, types, write_to

LESSON = "s16"

DIES = refuse(400, "invalid_request_error")
REFUSAL = [call("refuse_shutdown", reason="The migration is half done.")]
WRITE = [call("write_file", path="done.txt", content="done")]
ECHO = [call("bash", command="echo ran >> ran.txt")]


# ── The table of moves ───────────────────────────────────────────────

MOVES = ["request", "acknowledge", "refuse", "complete", "fail"]
WAY_TO = {      # status -> the moves that lead there
    None: [], "REQUESTED": MOVES[:1], "ACKNOWLEDGED": MOVES[:2],
    "COMPLETED": [*MOVES[:2], "complete"], "REFUSED": [*MOVES[:2], "refuse"],
    "FAILED": ["request", "fail"],
}
TABLE = {       # status -> the status after each of MOVES; a dot is an illegal move
    None:           "REQUESTED  .             .        .          .",
    "REQUESTED":    ".          ACKNOWLEDGED  .        .          FAILED",
    "ACKNOWLEDGED": ".          .             REFUSED  COMPLETED  FAILED",
    "COMPLETED":    "REQUESTED  .             .        .          .",
    "REFUSED":      "REQUESTED  .             .        .          .",
    "FAILED":       "REQUESTED  .             .        .          .",
}
CELLS = [(before, move, before if after == "." else after)
         for before, row in TABLE.items() for move, after in zip(MOVES, row.split())]


@pytest.fixture
def handshake(lesson):
    """A handshake of its own, which nobody else moves."""
    return lesson.ShutdownHandshake()


def make(handshake, move, name="alice"):
    """The name of the status that a move returns, or None."""
    status = getattr(handshake, move)(name)
    return status and status.name


@pytest.mark.parametrize("before, move, after", CELLS)
def test_each_move_leads_where_the_table_says(handshake, before, move, after):
    for name in "bob", "alice":
        for step in WAY_TO[before]:
            make(handshake, step, name)
        assert make(handshake, "status", name) == before
    assert make(handshake, move) == make(handshake, "status") == after
    assert make(handshake, "status", "bob") == before         # it is a matter of alice's alone
    assert make(handshake, "status", "carol") is None


def test_a_stop_that_failed_in_the_wrap_up_can_be_asked_for_again(handshake):
    moves = ["request", "acknowledge", "fail", "request", "acknowledge", "complete", "request"]
    assert [make(handshake, move) for move in moves] == [
        "REQUESTED", "ACKNOWLEDGED", "FAILED", "REQUESTED", "ACKNOWLEDGED", "COMPLETED",
        "REQUESTED"]


@pytest.fixture
def restless():
    """Threads that take turns as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


class Busy(str):
    """A name at whose look-up of a given number another thread makes a move, if it is let."""

    def __hash__(self):
        self.number -= 1
        if self.number == 0:
            self.other = Task(self.move)
            self.other.join(0.02)
        return super().__hash__()


@pytest.mark.parametrize("number", [1, 2])
def test_a_move_in_the_middle_of_another_waits_for_it(handshake, number):
    for step in WAY_TO["ACKNOWLEDGED"]:
        make(handshake, step)
    name = Busy("alice")
    name.number, name.move = number, lambda: make(handshake, "refuse")
    assert {make(handshake, "complete", name), name.other.result()} == {make(handshake, "status")}


def test_of_many_moves_at_one_moment_one_counts(handshake, restless):
    for _ in range(10):
        assert at_once(*[lambda: make(handshake, "request")] * 6) == ["REQUESTED"] * 6
        make(handshake, "acknowledge")
        after = at_once(*[functools.partial(make, handshake, move)
                          for move in ("refuse", "complete", "fail") * 2])
        assert set(after) == {make(handshake, "status")} < {"REFUSED", "COMPLETED", "FAILED"}


def test_names_do_not_disturb_each_other(handshake, restless):
    def to_the_end(name):
        return [make(handshake, move, name) for move in WAY_TO["COMPLETED"] * 20]

    names = [f"agent-{number}" for number in range(8)]
    for statuses in at_once(*[functools.partial(to_the_end, name) for name in names]):
        assert statuses == ["REQUESTED", "ACKNOWLEDGED", "COMPLETED"] * 20


# ── Asking ───────────────────────────────────────────────────────────

def stop(stage, name="alice"):
    """Ask a teammate to stop, as the lead's tool does."""
    return stage.request_shutdown(stage.LEAD, name, "REASON-77")


def status(stage, name="alice"):
    return make(stage.HANDSHAKE, "status", name)


def test_a_request_says_how_far_the_stop_has_come(lesson):
    member(lesson)
    assert stop(lesson) == "Shutdown requested for 'alice' (handshake: REQUESTED)"
    lesson.HANDSHAKE.acknowledge("alice")
    assert "(handshake: ACKNOWLEDGED)" in stop(lesson)


@pytest.mark.parametrize("moves", [[], ["acknowledge"]])
def test_a_request_while_one_is_under_way_opens_no_second(lesson, moves):
    member(lesson)
    stop(lesson)
    for move in moves:
        make(lesson.HANDSHAKE, move)
    before = everything(lesson)
    stop(lesson)
    assert everything(lesson) == before
    assert len(lesson.pending_requests) == 1


def test_many_requests_at_one_moment_are_one(lesson, restless):
    for number in range(10):
        name = member(lesson, f"agent-{number}").name
        at_once(*[lambda: stop(lesson, name)] * 6)
        assert [state.target for state in lesson.pending_requests.values()].count(name) == 1
        assert len(lesson.BUS.read_inbox(name)) == 1


def test_a_request_to_nobody_is_an_error_that_names_who_is_there(stage):             # case 6
    names = ["ghost", "alcie", "", "lead"]
    stage.spawn("alice")
    idle(stage, "alice")
    before = everything(stage)
    stage.play(lead=[[call("request_shutdown", teammate=name) for name in names]])
    stage.say("Stop them.")
    for name, result in zip(names, results_of(stage.calls("lead")[1]), strict=True):
        assert result["is_error"] and "alice" in result["content"]
        assert f"No active teammate named '{name}'" in result["content"]
    assert everything(stage) == before


# ── From the request to the end ──────────────────────────────────────

def reports(stage):
    """The types of the messages to the lead but idle notices, in order."""
    return [kind for kind in types(stage) if kind != "idle_notification"]


def over(stage, state, handshake, name="alice"):
    """Wait until a teammate has ended; its state and its handshake must be these."""
    until(lambda: stage.TEAM[name].ended)
    with stage.LOCK:                                          # its end is one step
        assert (stage.TEAM[name].state, status(stage, name)) == (state, handshake)


def completed(stage, name="alice"):
    over(stage, "COMPLETED", "COMPLETED", name)


def settled(stage, state, name="alice"):
    """The lead reads its mail; what has come of the latest request to stop."""
    stage.consume_lead_inbox()
    assert latest(stage, "shutdown", name).status == state


def in_wrap_up(stage, answer, name="alice"):
    """A teammate in its wrap-up turn, which waits for this answer of its model."""
    held = stage.hold(answer)
    stage.spawn(name, "done", held)
    idle(stage, name)
    stop(stage, name)
    assert held.asked.wait(LIMIT)
    return stage.TEAM[name], held


def is_wrap_up(request):
    return '<wrap_up reason="shutdown">' in words_of(request)


def stop_while_idle(stage):
    stage.spawn("alice", "done", "bye")
    idle(stage, "alice")
    stop(stage)


def stop_between_rounds(stage):
    _, held = in_mid_call(stage, [call("list_teammates")])
    stage.play(alice=[WRITE, "done", "bye"])
    stop(stage)
    held.free.set()


def stop_before_the_first_call(stage):
    with stage.LOCK:                                          # nobody takes a step meanwhile
        stage.spawn("alice", WRITE, "done", "bye")
        stop(stage)


@pytest.mark.parametrize("situation, calls", [
    (stop_while_idle, 1), (stop_between_rounds, 3), (stop_before_the_first_call, 2)],
    ids=lambda value: getattr(value, "__name__", ""))
def test_rule_7_a_teammate_stops_between_turns_after_it_has_reported(stage, situation, calls):
    situation(stage)                                                                 # case 8
    completed(stage)
    assert reports(stage) == ["result", "farewell", "shutdown_response"]
    assert contents(stage, "result") == ["done"] and contents(stage, "farewell") == ["bye"]
    assert (stage.workspace / "done.txt").exists() == (calls > 1)   # the work came first
    assert [is_wrap_up(request) for request in stage.calls("alice")] == [False] * calls + [True]
    state = latest(stage, "shutdown")
    assert (state.status, status(stage)) == ("pending", "COMPLETED")  # nobody has heard it yet
    settled(stage, "approved")
    stage.spawn("alice", "anew")
    idle(stage, "alice")
    assert contents(stage, "result")[-1] == "anew"


def test_the_request_itself_never_enters_the_models_history(stage):
    stop_between_rounds(stage)
    completed(stage)
    said = "".join(map(words_of, stage.calls("alice")))
    assert "shutdown_request" not in said and "REASON-77" not in said
    assert latest(stage, "shutdown").request_id not in said
    assert words_of(stage.calls("alice")[-1]).count("<wrap_up") == 1


def test_rule_1_request_and_answer_carry_one_id(stage):
    stop_while_idle(stage)
    completed(stage)
    [state] = stage.pending_requests.values()
    [request] = [msg for msg in stage.BUS.messages("lead", 0)[0] if "request_id" in msg["metadata"]]
    assert request["metadata"] == {"request_id": state.request_id, "approve": True}
    assert (request["from"], request["to"]) == (state.target, state.sender)


def test_rule_7_the_answer_and_the_end_are_one_step(stage, restless):
    stage.spawn("alice", "done", "bye")
    for number in range(1, 6):
        idle(stage, "alice")
        stop(stage)
        with stage.LOCK:                                      # nobody gets behind the answer
            stage.BUS.wait("lead", lambda: len(stage.mail("shutdown_response")) == number, LIMIT)
            assert (stage.TEAM["alice"].state, status(stage)) == ("COMPLETED", "COMPLETED")
            stage.spawn("alice", "done", "bye")               # the name is free at once


def test_a_line_of_work_runs_to_its_end_by_itself(stage):
    stage.play(lead=[[call("spawn_teammate", name="alice", role="tester", prompt="Write it."),
                      call("request_shutdown", teammate="alice")], "They know."],
               alice=[WRITE, "I wrote it.", "All is written."])
    stage.say("Spawn alice, have her create a file, then shut her down.")
    come_to_rest(stage)
    completed(stage)
    assert (stage.workspace / "done.txt").exists()
    assert latest(stage, "shutdown").status == "approved"
    heard = "".join(map(words_of, stage.calls("lead")))
    assert "I wrote it." in heard and "All is written." in heard
    assert f'request_id="{latest(stage, "shutdown").request_id}"' in heard


def test_a_shutdown_after_a_shutdown_is_another_one(stage):
    for _ in range(2):
        stop_while_idle(stage)
        completed(stage)
        settled(stage, "approved")
    assert len(stage.pending_requests) == 2
    assert reports(stage) == ["result", "farewell", "shutdown_response"] * 2


# ── Mail around a stop ───────────────────────────────────────────────

def test_words_before_and_after_the_request_are_heard(stage):                        # case 9
    _, held = in_mid_call(stage, "one")
    stage.play(alice=["two", "bye"])
    write_to(stage, "alice", "m1")
    stop(stage)
    write_to(stage, "alice", "m2")
    held.free.set()
    completed(stage)
    last = words_of(stage.calls("alice")[-1])
    assert (last.count("m1"), last.count("m2")) == (1, 1)
    assert reports(stage) == ["result", "result", "farewell", "shutdown_response"]


def test_the_lead_hears_of_words_that_came_too_late(stage):                          # case 9
    _, held = in_wrap_up(stage, "bye")
    write_to(stage, "alice", "m2")
    held.free.set()
    completed(stage)
    settled(stage, "approved")
    assert reports(stage) == ["result", "farewell", "shutdown_response", "message"]
    assert "m2" in contents(stage, "message")[0]


def test_words_that_come_during_the_wrap_up_are_in_its_next_call(stage):
    _, held = in_wrap_up(stage, WRITE)
    stage.play(alice=["bye"])
    write_to(stage, "alice", "m2")
    held.free.set()
    completed(stage)
    assert "m2" in words_of(stage.calls("alice")[-1])
    assert reports(stage) == ["result", "farewell", "shutdown_response"]


def test_a_stop_releases_who_waits_for_a_permission(stage, monkeypatch):             # case 17
    monkeypatch.setattr(stage.lesson, "LOOK_AGAIN", 10 * LIMIT)
    stage.spawn("alice", ECHO, "It did not run.", "bye")
    until(stage.BROKER.waiting)
    asked = time.monotonic()
    stop(stage)
    assert stage.BROKER.resolve_all(lambda question: "y") == 0
    completed(stage)
    assert time.monotonic() - asked < 2
    [result] = results_of(stage.calls("alice")[1])
    assert result["is_error"] and "asked to stop" in result["content"]
    assert not (stage.workspace / "ran.txt").exists()


def test_a_command_after_the_request_asks_nobody_and_does_not_run(stage):
    held = stage.hold(ECHO)
    stage.spawn("alice", ECHO, held, "It ran once.")
    until(stage.BROKER.waiting)
    stage.BROKER.resolve_all(lambda question: "a")            # always: and yet not now
    assert held.asked.wait(LIMIT)
    stop(stage)
    held.free.set()
    completed(stage)
    [result] = results_of(stage.calls("alice")[2])
    assert result["is_error"] and "asked to stop" in result["content"]
    assert (stage.workspace / "ran.txt").read_text().split() == ["ran"]


# ── The wrap-up turn ─────────────────────────────────────────────────

def tools(request):
    return {tool["name"] for tool in request["tools"]}


def test_a_wrap_up_has_tools_of_its_own(stage):
    stop_while_idle(stage)
    completed(stage)
    usual, wrap_up = map(tools, stage.calls("alice"))
    assert wrap_up == {"read_file", "write_file", "send_message", "list_teammates",
                       "refuse_shutdown"}
    assert usual == wrap_up - {"refuse_shutdown"} | {"bash", "submit_plan"}


def test_a_wrap_up_can_write_down_what_is_left(stage):
    in_wrap_up(stage, WRITE)[1].free.set()
    completed(stage)
    assert (stage.workspace / "done.txt").exists()


def test_a_wrap_up_begins_nothing_new(stage, monkeypatch):
    monkeypatch.setattr(stage.lesson, "ALLOW_ALL", True)
    plan = call("submit_plan", title="More", steps=["Go on."])
    in_wrap_up(stage, [*ECHO, plan])[1].free.set()
    completed(stage)
    for tool, result in zip(["bash", "submit_plan"], results_of(stage.calls("alice")[2])):
        assert result["is_error"] and tool in result["content"]
    assert not (stage.workspace / "ran.txt").exists()
    assert [state.type for state in stage.pending_requests.values()] == ["shutdown"]


def test_rule_7_words_alone_refuse_nothing(stage):                                   # case 28
    answers = ["I will not stop!", "refuse_shutdown", "", [text("  \n ")]]
    for number, answer in enumerate(answers):
        in_wrap_up(stage, answer, f"agent-{number}")[1].free.set()
        completed(stage, f"agent-{number}")
        settled(stage, "approved", f"agent-{number}")
    *words, empty, blank = contents(stage, "farewell")
    assert words == answers[:2]
    assert empty.strip() and blank.strip()


def test_a_wrap_up_without_end_is_cut_by_the_limit_of_rounds(stage, monkeypatch):
    monkeypatch.setattr(stage.lesson, "MAX_ROUNDS", 3)
    _, held = in_wrap_up(stage, WRITE)
    stage.play(alice=[WRITE] * 9)
    held.free.set()
    completed(stage)
    settled(stage, "approved")
    assert len(stage.calls("alice")) == 4 and "3" in contents(stage, "farewell")[0]


# ── Refusing ─────────────────────────────────────────────────────────

def test_a_refusal_goes_on_working_and_can_be_asked_again(stage, capsys):            # case 29
    in_wrap_up(stage, REFUSAL)[1].free.set()
    until(lambda: stage.mail("shutdown_response"))
    idle(stage, "alice")
    assert reports(stage) == ["result", "result", "shutdown_response"]
    assert status(stage) == "REFUSED"
    settled(stage, "rejected")
    assert contents(stage, "shutdown_response") == ["The migration is half done."]
    assert "The migration is half done." in capsys.readouterr().out
    stage.play(alice=["It is done.", "bye"])
    write_to(stage, "alice", "Go on.")
    until(lambda: "It is done." in contents(stage, "result"))
    assert "bash" in tools(stage.calls("alice")[-1])
    assert "refuse_shutdown" not in tools(stage.calls("alice")[-1])
    stop(stage)
    completed(stage)
    settled(stage, "approved")
    assert [state.status for state in stage.pending_requests.values()] == ["rejected", "approved"]


def test_the_text_of_a_refusal_is_a_result_and_the_reason_its_answer(stage):
    _, held = in_wrap_up(stage, REFUSAL)
    stage.play(alice=["Tables one and two are moved."])
    held.free.set()
    until(lambda: stage.mail("shutdown_response"))
    assert contents(stage, "result")[-1] == "Tables one and two are moved."
    [answer] = stage.mail("shutdown_response")
    assert answer["metadata"] == {"request_id": latest(stage, "shutdown").request_id,
                                  "approve": False}
    assert stage.mail("farewell") == []


def test_a_refusal_that_is_called_wrongly_refuses_nothing(stage):
    calls = [call("refuse_shutdown", **given) for given in ({}, {"reason": 7}, {"why": "so"})]
    in_wrap_up(stage, calls)[1].free.set()
    completed(stage)
    assert [result["is_error"] for result in results_of(stage.calls("alice")[2])] == [True] * 3


def test_nobody_can_refuse_before_it_is_asked_to_stop(stage):
    stage.spawn("alice", REFUSAL, "done", "bye")
    idle(stage, "alice")
    [result] = results_of(stage.calls("alice")[1])
    assert result["is_error"] and "refuse_shutdown" in result["content"]
    stop(stage)
    completed(stage)


def test_rule_4_a_copy_of_a_request_that_was_answered_stops_nobody(stage):
    _, held = in_wrap_up(stage, REFUSAL)
    state = latest(stage, "shutdown")
    by_hand(stage, message("lead", "alice", "shutdown_request", request_id=state.request_id))
    held.free.set()
    until(lambda: stage.mail("shutdown_response"))
    idle(stage, "alice")
    write_to(stage, "alice", "Are you there?")
    until(lambda: len(stage.mail("result")) == 3 and stage.TEAM["alice"].state != "RUNNING")
    assert (stage.TEAM["alice"].state, status(stage)) == ("IDLE", "REFUSED")
    assert words_of(stage.calls("alice")[-1]).count("<wrap_up") == 1
    assert len(stage.mail("shutdown_response")) == 1
    settled(stage, "rejected")


# ── Failing ──────────────────────────────────────────────────────────

def test_rule_7_a_wrap_up_that_fails_says_so(stage, quick_retries):
    _, held = in_wrap_up(stage, refuse(500, "api_error"))
    stage.play(alice=[refuse(500, "api_error")] * 9)
    held.free.set()
    over(stage, "FAILED", "FAILED")
    settled(stage, "withdrawn")
    assert reports(stage) == ["result", "error"]
    assert "500" in contents(stage, "error")[0]


def test_rule_7_a_teammate_that_dies_before_its_wrap_up_says_so(stage):
    _, held = in_mid_call(stage, DIES)
    stop(stage)
    held.free.set()
    over(stage, "FAILED", "FAILED")
    come_to_rest(stage)                                       # nobody waits for it
    settled(stage, "withdrawn")
    assert reports(stage)[0] == "error" and "farewell" not in reports(stage)
    stage.spawn("alice", "anew", "bye")
    idle(stage, "alice")
    stop(stage)
    completed(stage)


def test_an_old_request_does_not_stop_a_new_teammate_of_that_name(stage):
    old, held = in_mid_call(stage, "late")
    stop(stage)
    old.stop()
    held.free.set()
    over(stage, "STOPPED", "FAILED")
    settled(stage, "withdrawn")
    new = stage.spawn("alice", "I am new.", "bye")
    idle(stage, "alice")
    assert (new.state, is_wrap_up(stage.calls("alice")[-1])) == ("IDLE", False)
    stop(stage)
    completed(stage)
    settled(stage, "approved")


def test_an_answer_of_an_old_teammate_does_not_stop_a_new_one_of_that_name(stage):
    stop_while_idle(stage)
    completed(stage)
    new = stage.spawn("alice", "I am new.")
    settled(stage, "approved")                                # the old one's answer is read now
    idle(stage, "alice")
    assert new.state == "IDLE"


def test_a_hard_stop_during_the_wrap_up_lets_nothing_more_be_sent(stage):
    alice, held = in_wrap_up(stage, "bye")
    alice.stop()
    before = snapshot(stage)
    held.free.set()
    over(stage, "STOPPED", "FAILED")
    assert snapshot(stage) == before
    assert reports(stage) == ["result"]
    settled(stage, "withdrawn")


# ── Several at once ──────────────────────────────────────────────────

def test_two_stops_at_once_are_kept_apart(stage):
    _, first = in_wrap_up(stage, REFUSAL)
    _, second = in_wrap_up(stage, "bob says bye", "bob")
    second.free.set()
    first.free.set()
    completed(stage, "bob")
    idle(stage, "alice")
    settled(stage, "rejected")
    settled(stage, "approved", "bob")
    assert [msg["from"] for msg in stage.mail("farewell")] == ["bob"]
    assert (status(stage), status(stage, "bob")) == ("REFUSED", "COMPLETED")


def test_thirty_stops_at_one_moment_are_all_completed(stage):
    names = [f"agent-{number}" for number in range(30)]
    for name in names:
        stage.spawn(name)
    for name in names:
        idle(stage, name)
    at_once(*[functools.partial(stop, stage, name) for name in names])
    for name in names:
        completed(stage, name)
        settled(stage, "approved", name)
        told = [msg["type"] for msg in stage.mail() if msg["from"] == name]
        assert told == ["result", "idle_notification", "farewell", "shutdown_response"]


# ── Commands ─────────────────────────────────────────────────────────

@pytest.fixture
def obey(stage, capsys):
    """A function that runs a command and returns the lines which it shows."""
    def obey(line):
        capsys.readouterr()
        with stage.LOCK:                                      # nobody else shows anything meanwhile
            stage.obey(line)
            return capsys.readouterr().out.splitlines()
    return obey


def test_a_stop_at_the_prompt_from_the_request_to_the_end(stage, obey):
    _, held = in_mid_call(stage, "done")
    last = stage.hold("bye")
    stage.play(alice=[last])
    assert obey("/team list") == ["alice [RUNNING]"]
    assert obey("/team shutdown alice") == [
        "no shutdown was requested (to ask for it: /team stop alice)"]
    assert obey("/team stop alice") == ["Shutdown requested for 'alice' (handshake: REQUESTED)"]
    assert obey("/team shutdown alice") == ["handshake status: REQUESTED"]
    assert obey("/team") == ["alice [RUNNING] handshake=REQUESTED"]
    held.free.set()
    assert last.asked.wait(LIMIT)
    assert obey("/team stop alice") == ["Shutdown requested for 'alice' (handshake: ACKNOWLEDGED)"]
    assert obey("/team list") == ["alice [RUNNING] handshake=ACKNOWLEDGED"]
    last.free.set()
    completed(stage)
    assert obey("/team shutdown alice") == ["handshake status: COMPLETED"]
    assert obey("/team list") == ["alice [COMPLETED]"]
    assert "alice -> lead: farewell — bye (unread)" in obey("/team messages")
    assert len(stage.pending_requests) == 1


def test_a_refused_and_a_failed_stop_are_shown(stage, obey):
    in_wrap_up(stage, REFUSAL)[1].free.set()
    in_wrap_up(stage, DIES, "bob")[1].free.set()
    over(stage, "FAILED", "FAILED", "bob")
    until(lambda: stage.mail("shutdown_response"))
    idle(stage, "alice")
    assert obey("/team shutdown alice") == ["handshake status: REFUSED"]
    assert obey("/team shutdown bob") == ["handshake status: FAILED"]
    assert obey("/team list") == ["alice [IDLE] handshake=REFUSED", "bob [FAILED] handshake=FAILED"]
    assert obey("/team stop alice") == ["Shutdown requested for 'alice' (handshake: REQUESTED)"]
    completed(stage)


def test_the_hard_stop_at_the_prompt_asks_nobody(stage, obey):
    alice, held = in_mid_call(stage, "late")
    [line] = obey("/team stop alice --now")
    assert "alice" in line and "requested" not in line
    held.free.set()
    until(lambda: alice.ended)
    assert (alice.state, types(stage), stage.pending_requests) == ("STOPPED", [], {})
    assert obey("/team list") == ["alice [STOPPED]"]


def test_a_command_for_nobody_says_who_is_there(lesson, typed, capsys):
    member(lesson)
    before = everything(lesson)
    typed("/team stop ghost", "/team stop ghost --now", "/team shutdown ghost", "/team stop",
          "/team shutdown")
    lesson.talk()
    assert re.findall("No active teammate named '(.*)'.*alice", capsys.readouterr().out) == [
        "ghost", "ghost", "ghost", "", ""]
    assert everything(lesson) == before


@pytest.mark.parametrize("line", ["/team stop alice", "/team stop ALICE", "／ＴＥＡＭ ｓｔｏｐ ａｌｉｃｅ",
                                  " /team  stop  alice "])
def test_a_command_is_understood_however_it_is_typed(lesson, typed, line):
    member(lesson, "Alice")
    typed(line)
    lesson.talk()
    assert status(lesson, "Alice") == "REQUESTED"
    assert latest(lesson, "shutdown", "Alice").status == "pending"


# ── Leaving ──────────────────────────────────────────────────────────

def test_who_leaves_asks_all_to_stop_and_sees_their_farewells(stage, capsys):
    for name in "alice", "bob":
        stage.spawn(name, "done", f"{name} says bye")
        idle(stage, name)
    stage.leave()
    for name in "alice", "bob":
        completed(stage, name)
        assert latest(stage, "shutdown", name).status == "approved"
    shown = capsys.readouterr().out
    for name in "alice", "bob":
        assert f"{name} -> lead: farewell — {name} says bye" in shown
    assert "Left undone" not in shown
    assert str(stage.BUS.folder) in shown and shown.endswith("Goodbye.\n")


def test_who_waits_for_the_person_is_released_when_the_person_leaves(stage, capsys):
    stage.spawn("alice", [call("submit_plan", title="More", steps=["Go on."])], "done", "bye")
    stage.spawn("bob", ECHO, "done", "bye")
    until(lambda: stage.mail("plan_approval_request") and stage.BROKER.waiting())
    stage.leave()
    completed(stage)
    completed(stage, "bob")
    assert latest(stage, "plan_approval").status == "withdrawn"
    assert not (stage.workspace / "ran.txt").exists()
    assert "[y]" not in capsys.readouterr().out


def test_who_does_not_stop_in_time_is_cut_off_and_named(stage, monkeypatch, capsys):
    monkeypatch.setattr(stage.lesson, "LEAVE_LIMIT", 0.05)
    alice, _ = in_mid_call(stage, "late")
    stage.leave()
    assert (alice.state, latest(stage, "shutdown").status) == ("STOPPED", "withdrawn")
    shown = capsys.readouterr().out
    assert re.search("undone.*alice", shown) and shown.endswith("Goodbye.\n")
    assert stage.mail("farewell") == []


def leave_until(stage, ready):
    """Leave, and press Ctrl-C when that is so."""
    def press_ctrl_c():
        until(lambda: ready() and asleep(threading.main_thread()))
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    keys = Task(press_ctrl_c)
    try:
        stage.leave()
    except KeyboardInterrupt:
        pytest.fail("Ctrl-C came through")
    keys.result()


@POSIX
def test_another_ctrl_c_cuts_off_only_who_has_not_stopped(stage, monkeypatch, capsys):
    monkeypatch.setattr(stage.lesson, "LEAVE_LIMIT", LIMIT)
    bob, _ = in_mid_call(stage, "late", "bob")
    alice = stage.spawn("alice", "done", "bye")
    idle(stage, "alice")
    leave_until(stage, lambda: alice.ended)
    completed(stage)
    assert (bob.state, latest(stage, "shutdown", "bob").status) == ("STOPPED", "withdrawn")
    shown = capsys.readouterr().out
    [line] = [line for line in shown.splitlines() if "undone" in line]
    assert "bob" in line and "alice" not in line
    assert "farewell — bye" in shown and shown.endswith("Goodbye.\n")


@POSIX
def test_who_refuses_when_the_person_leaves_is_cut_off_in_the_end(stage, monkeypatch, capsys):
    monkeypatch.setattr(stage.lesson, "LEAVE_LIMIT", LIMIT)
    alice = stage.spawn("alice", "done", REFUSAL, "I go on.")
    idle(stage, "alice")
    leave_until(stage, lambda: [state for state in list(stage.pending_requests.values())
                                if state.status == "rejected"])
    assert (alice.state, latest(stage, "shutdown").status) == ("STOPPED", "rejected")
    shown = capsys.readouterr().out
    assert "The migration is half done." in shown and re.search("undone.*alice", shown)


def test_with_nobody_there_leaving_takes_no_time(lesson, capsys):
    lesson.leave()
    assert capsys.readouterr().out == "Goodbye.\n"
    assert lesson.pending_requests == {}
