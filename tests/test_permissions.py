"""Permission bubbling: a teammate's command waits until the person has been asked."""

import threading

import pytest
from conftest import LIMIT, Task, call, results_of, until

LESSON = "s15"

ECHO = [call("bash", command="echo ran > ran.txt")]


@pytest.fixture
def broker(lesson):
    """A broker alone: no teammate, no person, no model."""
    return lesson.PermissionBroker()


def undecided(broker):
    return [question for question in broker.questions if question.answer is None]


def ask(broker, agent, command):
    """A question in a thread of its own, asked and waiting."""
    number = len(undecided(broker))
    task = Task(broker.submit_and_wait, agent, command)
    until(lambda: len(undecided(broker)) > number)
    return task


def always(answer):
    """A decider that gives one answer, whatever is asked."""
    return lambda question: answer


def asking(stage):
    """Alice, whose command waits for a permission."""
    alice = stage.spawn("alice", ECHO, "done")
    until(lambda: undecided(stage.BROKER))
    return alice


def ran(stage):
    return (stage.workspace / "ran.txt").exists()


# ── Answers ──────────────────────────────────────────────────────────

@pytest.mark.parametrize("answer, allowed", [("y", True), ("n", False)])
def test_yes_and_no_hold_once(broker, answer, allowed):
    first = ask(broker, "alice", "ls")
    assert broker.resolve_all(always(answer)) == 1
    assert first.result() is allowed
    second = ask(broker, "alice", "ls")
    assert broker.resolve_all(always("n" if allowed else "y")) == 1
    assert second.result() is not allowed


@pytest.mark.parametrize("answer, allowed", [("a", True), ("d", False)])
def test_always_and_never_hold_for_the_run(broker, answer, allowed):
    first = ask(broker, "alice", "ls")
    assert broker.resolve_all(always(answer)) == 1
    assert first.result() is allowed
    for _ in range(3):
        assert Task(broker.submit_and_wait, "alice", "ls").result() is allowed
    assert broker.resolve_all(always("y")) == 0


@pytest.mark.parametrize("answer, other", [("a", "n"), ("d", "y")])
@pytest.mark.parametrize("agent, command", [("bob", "ls"), ("alice", "ls -l"), ("alice", "ls "),
                                            ("alice", " ls"), ("alice", "LS"), ("Alice", "ls")])
def test_always_and_never_hold_for_no_other(broker, answer, other, agent, command):
    ask(broker, "alice", "ls")
    broker.resolve_all(always(answer))
    task = ask(broker, agent, command)
    assert broker.resolve_all(always(other)) == 1
    assert task.result() is (other == "y")


def test_another_run_remembers_nothing(lesson, broker):
    ask(broker, "alice", "ls")
    broker.resolve_all(always("a"))
    other_run = lesson.PermissionBroker()
    task = ask(other_run, "alice", "ls")
    assert other_run.resolve_all(always("n")) == 1
    assert task.result() is False


def test_with_no_question_nobody_is_asked(broker):
    assert broker.resolve_all(lambda question: pytest.fail("nobody had a question")) == 0


def test_the_decider_sees_who_asks_and_the_exact_command(broker):
    command, seen = "printf '你好\\n' |\ncat  # \u2028", []
    task = ask(broker, "小明", command)
    broker.resolve_all(lambda question: seen.append((question.agent, question.command)) or "n")
    assert seen == [("小明", command)]
    assert task.result() is False


# ── Several at once ──────────────────────────────────────────────────

def test_questions_are_asked_in_order_and_each_gets_its_own_answer(broker):
    names = [f"agent-{number}" for number in range(6)]
    tasks = [ask(broker, name, "ls") for name in names]
    order = []

    def decide(question):
        order.append(question.agent)
        return "yn"[len(order) % 2]

    assert broker.resolve_all(decide) == 6
    assert order == names
    assert [task.result() for task in tasks] == [False, True] * 3


def test_nobody_gets_the_answer_of_another_when_all_ask_at_once(broker):
    start, count = threading.Barrier(8), 25

    def put(number):
        start.wait()
        return [broker.submit_and_wait(f"agent-{number}", f"{number} {turn}")
                for turn in range(count)]

    def decide(question):
        number, turn = map(int, question.command.split())
        assert question.agent == f"agent-{number}"
        return "y" if (number + turn) % 3 else "n"

    def review():
        decided.append(broker.resolve_all(decide))
        return not any(task.is_alive() for task in tasks)

    tasks, decided = [Task(put, number) for number in range(8)], []
    until(review)
    assert sum(decided) == 8 * count
    for number, task in enumerate(tasks):
        assert task.result() == [bool((number + turn) % 3) for turn in range(count)]


def test_a_question_that_comes_during_a_review_is_decided_in_it(broker):
    tasks = [ask(broker, "alice", "ls")]

    def decide(question):
        if len(tasks) == 1:
            tasks.append(ask(broker, "bob", "rm"))
        return {"ls": "y", "rm": "n"}[question.command]

    assert broker.resolve_all(decide) == 2
    assert [task.result() for task in tasks] == [True, False]


def test_a_decider_that_is_interrupted_leaves_the_question(broker):
    tasks = [ask(broker, name, "ls") for name in ("alice", "bob")]

    def interrupted(question):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broker.resolve_all(interrupted)
    assert all(task.is_alive() for task in tasks)
    assert broker.resolve_all(always("y")) == 2
    assert [task.result() for task in tasks] == [True, True]


def test_an_answer_wakes_the_waiter_at_once(lesson, broker, monkeypatch):
    monkeypatch.setattr(lesson, "LOOK_AGAIN", 10 * LIMIT)
    task = ask(broker, "alice", "ls")
    broker.resolve_all(always("y"))
    assert task.result() is True


# ── Stops ────────────────────────────────────────────────────────────

def test_a_stop_releases_the_waiter_with_no(stage, monkeypatch):
    monkeypatch.setattr(stage.lesson, "LOOK_AGAIN", 10 * LIMIT)
    asking(stage).stop()
    until(lambda: stage.TEAM["alice"].ended)
    assert not ran(stage)
    assert stage.BROKER.resolve_all(always("y")) == 0
    assert stage.mail() == []


@pytest.fixture
def alice(stage):
    """Alice, in the middle of a call of her model."""
    held = stage.hold("late")
    alice = stage.spawn("alice", held)
    assert held.asked.wait(LIMIT)
    return alice


def test_a_stop_that_came_before_the_question_is_a_no(stage, alice):
    alice.stop()
    assert Task(stage.BROKER.submit_and_wait, "alice", "ls").result() is False
    assert stage.BROKER.resolve_all(always("y")) == 0


def test_a_stop_during_the_review_is_not_overruled_by_the_answer(stage):
    alice = asking(stage)

    def decide(question):
        alice.stop()
        until(lambda: alice.ended)
        return "y"

    assert stage.BROKER.resolve_all(decide) == 0
    assert not ran(stage)


def test_a_yes_that_comes_after_the_stop_is_a_no(stage, alice):
    task = ask(stage.BROKER, "alice", "ls")
    with stage.LOCK:                        # the waiter cannot wake before the answer is there
        stage.BROKER.resolve_all(lambda question: alice.stop() or "y")
    assert task.result() is False


# ── The person ───────────────────────────────────────────────────────

@pytest.mark.parametrize("line, allowed", [
    ("y", True), ("yes", True), (" Y ", True), ("ｙ", True), ("是", True), ("a", True),
    ("always", True), ("总是", True), ("n", False), ("no", False), ("NO", False), ("否", False),
    ("d", False), ("never", False), ("从不", False)])
def test_the_person_answers_in_words(lesson, broker, typed, line, allowed):
    typed(line)
    task = ask(broker, "alice", "ls")
    assert broker.resolve_all(lesson.ask_permission) == 1
    assert task.result() is allowed


def test_what_is_no_answer_is_asked_again(lesson, broker, typed, capsys):
    typed("", "maybe", "yn", "y")
    task = ask(broker, "alice", "ls")
    broker.resolve_all(lesson.ask_permission)
    assert task.result() is True
    assert capsys.readouterr().out.count("[y]") == 4


def test_the_end_of_input_is_no(lesson, broker, typed):
    typed("maybe")
    tasks = [ask(broker, name, "ls") for name in ("alice", "bob")]
    assert broker.resolve_all(lesson.ask_permission) == 2
    assert [task.result() for task in tasks] == [False, False]


def test_the_person_sees_who_asks_and_the_whole_command(lesson, broker, typed, capsys):
    command = "echo one\n" + "echo two && " * 100 + "echo \x1b[2Jthe end"
    ask(broker, "alice", command)
    typed("n")
    broker.resolve_all(lesson.ask_permission)
    shown = capsys.readouterr().out
    assert "alice" in shown and "echo one" in shown
    assert shown.count("echo two") == 100 and "the end" in shown
    assert "\x1b" not in shown


def test_ctrl_c_at_the_question_leaves_it_waiting(lesson, broker, typed):
    typed("^C", "y")
    task = ask(broker, "alice", "ls")
    with pytest.raises(KeyboardInterrupt):
        broker.resolve_all(lesson.ask_permission)
    assert task.is_alive()
    assert broker.resolve_all(lesson.ask_permission) == 1
    assert task.result() is True


# ── On the stage ─────────────────────────────────────────────────────

def test_a_denied_command_does_not_run_and_the_model_hears_it(stage, typed):
    typed("n")
    asking(stage)
    stage.until_rest()
    [result] = results_of(stage.calls("alice")[1])
    assert result["is_error"] and "not allow" in result["content"]
    assert not ran(stage)


def test_an_allowed_command_runs(stage, typed):
    typed("y")
    asking(stage)
    stage.until_rest()
    [result] = results_of(stage.calls("alice")[1])
    assert not result.get("is_error")
    assert ran(stage)


def test_a_denied_call_beside_an_allowed_one_keeps_the_order(stage, typed):
    typed("n", "y")
    stage.spawn("alice", [call("bash", command="echo one"), call("list_teammates"),
                          call("bash", command="echo two")])
    stage.until_rest()
    one, team, two = results_of(stage.calls("alice")[1])
    assert one["is_error"] and "alice" in team["content"] and two["content"].strip() == "two"


def test_a_question_is_asked_before_the_leads_next_call(stage, typed):
    def second_call(request):
        assert until(lambda: ran(stage))
        return "seen"

    typed("y")
    asking(stage)
    stage.play(lead=[second_call])
    stage.say("How is it going?")
    assert len(stage.calls("lead")) == 1


@pytest.mark.parametrize("agent", ["alice", "lead"])
def test_with_yes_nobody_is_asked(stage, monkeypatch, typed, capsys, agent):
    monkeypatch.setattr(stage.lesson, "ALLOW_ALL", True)
    typed()
    if agent == "lead":
        stage.play(lead=[ECHO])
        stage.say("Run it.")
    else:
        stage.spawn("alice", ECHO)
    until(lambda: len(stage.calls(agent)) == 2)
    assert ran(stage)
    assert "[y]" not in capsys.readouterr().out


@pytest.mark.parametrize("lines, allowed", [(["y"], True), (["n"], False), ([], False)])
def test_the_leads_own_command_asks_directly(stage, typed, lines, allowed):
    typed(*lines)
    stage.play(lead=[ECHO])
    stage.say("Run it.")
    [result] = results_of(stage.calls("lead")[1])
    assert (not result.get("is_error"), ran(stage)) == (allowed, allowed)


def test_always_for_the_lead_is_not_always_for_a_teammate(stage, typed):
    typed("a", "n")
    stage.play(lead=[ECHO, ECHO])
    stage.say("Run it twice.")
    assert not any(result.get("is_error") for result in results_of(stage.calls("lead")[2]))
    (stage.workspace / "ran.txt").unlink()
    asking(stage)
    stage.until_rest()
    assert not ran(stage)
