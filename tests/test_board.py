"""The task board: files, dependencies, claims by threads and processes, what is given back."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import POSIX, Task, load
from protocols import at_once

LESSON = "s17"
TASKS, THREADS, PROCESSES = 100, 8, 4


@pytest.fixture
def agents(lesson):
    """A function that gives agents without threads, by name and role."""
    def agents(**roles):
        for name, role in roles.items():
            lesson.BUS.open(name)
            lesson.TEAM[name] = lesson.Teammate(name, role)
        return list(lesson.TEAM.values())
    return agents


def on_disk(lesson):
    """{id: task} as the files say."""
    return {path.stem: json.loads(path.read_text("utf-8"))
            for path in (lesson.WORKSPACE / ".tasks").glob("*.json")}


def create(lesson, *subjects, **fields):
    for subject in subjects:
        lesson.create_task(lesson.LEAD, subject, **fields)


def by_hand(lesson, task_id, **fields):
    """A task file that a person wrote."""
    task = {"id": task_id, "subject": "by hand", "description": "", "status": "pending",
            "owner": None, "blocked_by": []}
    folder = lesson.WORKSPACE / ".tasks"
    folder.mkdir(exist_ok=True)
    (folder / f"{task_id}.json").write_text(json.dumps({**task, **fields}), "utf-8")


def refused(call, *args):
    """The sentence with which a call is refused."""
    with pytest.raises((LookupError, PermissionError, ValueError)) as error:
        call(*args)
    return str(error.value)


def test_importing_the_lesson_makes_no_board(lesson):
    assert not (lesson.WORKSPACE / ".tasks").exists()


def test_a_task_is_one_json_file_that_says_all(lesson):
    create(lesson, "建表 🙂", description="users\nand orders\ud800", required_role="tester")
    assert on_disk(lesson) == {"1": {
        "id": "1", "subject": "建表 🙂", "description": "users\nand orders\ufffd",
        "status": "pending", "owner": None, "blocked_by": [], "required_role": "tester"}}


def test_the_board_outlives_the_run_and_ids_go_on(lesson):
    create(lesson, "one", "two")
    later = load(Path(lesson.__spec__.origin))
    later.WORKSPACE = lesson.WORKSPACE
    assert later.create_task(later.LEAD, "three", blocked_by=["1"]) == "Task 3 is on the board."
    assert later.list_tasks(later.LEAD).splitlines() == [
        "1 one [pending]", "2 two [pending]", "3 three [pending, blocked by 1]"]


@pytest.mark.parametrize("blocked_by", [["1", "2"], "1, 2", "1，2", "#1 #2", [1, 2], '["1", "2"]'])
def test_dependencies_are_read_as_models_write_them(lesson, blocked_by):
    create(lesson, "one", "two")
    create(lesson, "three", blocked_by=blocked_by)
    assert on_disk(lesson)["3"]["blocked_by"] == ["1", "2"]


@pytest.mark.parametrize("subject, blocked_by, sentence", [
    ("", [], "A task has a subject."), (" \n", [], "A task has a subject."),
    ("x", ["7"], "There is no task '7'. The board has: 1, 2."),
    ("x", ["3"], "There is no task '3'. The board has: 1, 2."),          # its own id
    ("x", ["1", "two"], "There is no task 'two'. The board has: 1, 2."),
])
def test_a_task_that_could_never_begin_is_refused(lesson, subject, blocked_by, sentence):
    create(lesson, "one", "two")
    before = on_disk(lesson)
    said = refused(lambda: create(lesson, subject, blocked_by=blocked_by))
    assert sentence in said and on_disk(lesson) == before


def test_a_task_may_wait_for_one_that_waits_for_nothing_that_is_there(lesson):
    by_hand(lesson, "2", blocked_by=["gone"])
    create(lesson, "x", blocked_by="2")
    assert lesson.list_tasks(lesson.LEAD).splitlines() == [
        "2 by hand [pending, blocked by gone]", "3 x [pending, blocked by 2]"]


def test_a_circle_that_was_typed_by_hand_takes_no_new_task(lesson):
    by_hand(lesson, "1", blocked_by=["2"])
    assert "would wait for itself" in refused(lambda: create(lesson, "x", blocked_by="1"))
    by_hand(lesson, "2", blocked_by=["1"])
    assert "would wait for itself" in refused(lambda: create(lesson, "x", blocked_by="2"))
    assert sorted(on_disk(lesson)) == ["1", "2"]


def test_of_eight_that_claim_one_task_one_wins(lesson, agents):                      # case 21
    team = agents(**{f"t{number}": "coder" for number in range(THREADS)})
    create(lesson, "one")

    def attempt(agent):
        try:
            return lesson.claim_task(agent, "1") and agent.name
        except PermissionError as error:
            return str(error)

    answers = at_once(*[lambda agent=agent: attempt(agent) for agent in team])
    [winner] = [answer for answer in answers if " " not in answer]
    assert answers.count(f"Task 1 is in_progress by {winner}.") == THREADS - 1
    assert on_disk(lesson)["1"]["owner"] == f"{winner}@{lesson.RUN}"


def work_off(lesson, agent):
    """The ids of the tasks that an agent got hold of and completed, until none is left."""
    done = []
    while True:
        with lesson.board() as tasks:
            free = [task.id for task in tasks.values() if task.status == "pending"]
        if not free:
            return done
        task_id = random.choice(free[:4])           # which others try at the same time
        try:
            lesson.claim_task(agent, task_id)
        except PermissionError:
            continue
        lesson.complete_task(agent, task_id)
        done.append(task_id)


def each_once(lesson, done):
    """Whether all tasks were completed, each by one."""
    return (sorted(done, key=int) == sorted(on_disk(lesson), key=int)
            and {task["status"] for task in on_disk(lesson).values()} == {"completed"})


def test_a_hundred_tasks_and_eight_threads_each_is_claimed_and_completed_once(lesson, agents):
    team = agents(**{f"t{number}": "coder" for number in range(THREADS)})
    create(lesson, *map(str, range(TASKS)))
    lists = at_once(*[lambda agent=agent: work_off(lesson, agent) for agent in team])
    assert each_once(lesson, sum(lists, []))


PROGRAM = """
import os, pathlib, sys, time
sys.path.append(sys.argv[3])
from conftest import load
from test_board import work_off
lesson = load(pathlib.Path(sys.argv[1]))
lesson.WORKSPACE = pathlib.Path(sys.argv[2])
worker = lesson.Teammate("worker", "coder")

def say(*words):
    print(*words, flush=True)

def hang(*_):
    say("here")
    time.sleep(60)

say("ready")
sys.stdin.readline()
"""


@pytest.fixture
def process(lesson):
    """A function that starts another process on the same board and waits until it is there."""
    children = []

    def start(program):
        children.append(subprocess.Popen(
            [sys.executable, "-c", PROGRAM + program, lesson.__spec__.origin, lesson.WORKSPACE,
             Path(__file__).parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert children[-1].stdout.readline() == "ready\n"
        return children[-1]
    yield start
    for child in children:
        child.kill()
        child.communicate()


def go(child):
    child.stdin.write("\n")
    child.stdin.flush()


def test_a_hundred_tasks_and_four_processes_each_is_claimed_and_completed_once(lesson, process):
    create(lesson, *map(str, range(TASKS)))
    children = [process("say(*work_off(lesson, worker))") for _ in range(PROCESSES)]
    for child in children:
        go(child)
    lists = [Task(child.stdout.readline).result().split() for child in children]
    assert each_once(lesson, sum(lists, []))
    assert len({task["owner"] for task in on_disk(lesson).values()}) > 1


@pytest.mark.parametrize("program, status", [
    ("os.replace = hang", "pending"),                                   # written, not yet in place
    ("""
def half(path, text, encoding):
    with open(path, "w") as file:
        file.write(text[:20])
    hang()
pathlib.Path.write_text = half""", "pending"),
    ("ring = lesson.BUS.ring; lesson.BUS.open('x'); lesson.BUS.bells['x']; lesson.BUS.ring = hang",
     "in_progress"),                                                    # in place, and still locked
])
def test_a_process_that_is_killed_in_the_midst_of_a_claim_leaves_a_whole_board(
        lesson, agents, process, program, status):
    create(lesson, "one", "two")
    child = process(f"{program}\nlesson.claim_task(worker, '1')")
    go(child)
    assert child.stdout.readline() == "here\n"
    look = Task(on_board, lesson)                 # it waits for the lock, which the other one holds
    look.join(0.1)
    assert look.is_alive()
    child.kill()
    assert look.result() == [status, "pending"]
    [alice] = agents(alice="coder")
    if status == "in_progress":
        assert "worker of the run" in lesson.list_tasks(alice)
        lesson.release_task(lesson.LEAD, "1")
    assert sorted(work_off(lesson, alice)) == ["1", "2"]


def test_a_board_that_another_program_holds_too_long_is_an_error(lesson, process, monkeypatch):
    create(lesson, "one")
    child = process("with lesson.board(): hang()")
    go(child)
    assert child.stdout.readline() == "here\n"
    monkeypatch.setattr(lesson, "HOLD_LIMIT", 0.05)
    with pytest.raises(OSError, match="Another program holds the board"):
        lesson.list_tasks(lesson.LEAD)
    child.kill()
    child.wait()
    assert lesson.list_tasks(lesson.LEAD) == "1 one [pending]"


def on_board(lesson):
    with lesson.board() as tasks:
        return [task.status for task in tasks.values()]


def test_what_blocks_a_task_is_said_until_it_is_completed(lesson, agents):
    [alice] = agents(alice="coder")
    create(lesson, "schema", "config")
    create(lesson, "tests", blocked_by=["1", "2"])
    assert refused(lesson.claim_task, alice, "3") == "Task 3 is blocked by 1, 2."
    lesson.claim_task(alice, "1")
    assert lesson.complete_task(alice, "1") == "Task 1 is completed."
    assert lesson.scan_unclaimed_tasks(alice) == "2 config [pending]"
    lesson.claim_task(alice, "2")
    assert refused(lesson.claim_task, alice, "3") == "Task 3 is blocked by 2."
    assert lesson.complete_task(alice, "2").splitlines() == [
        "Task 2 is completed.", "It can be claimed now: 3 tests [pending]"]
    assert lesson.claim_task(alice, "3").startswith("Task 3 is yours: tests")


def test_only_the_owner_completes_and_gives_back(lesson, agents):
    alice, bob = agents(alice="coder", bob="coder")
    create(lesson, "one")
    not_yours = [(lesson.complete_task, "Task 1 is not in your hands: {}."),
                 (lesson.release_task, "Task 1 cannot be given back: {}.")]
    for call, sentence in not_yours:
        assert refused(call, alice, "1") == sentence.format("pending")
    lesson.claim_task(alice, "1")
    before = on_disk(lesson)
    for call, sentence in not_yours:
        assert refused(call, bob, "1") == sentence.format("in_progress by alice")
    assert refused(lesson.claim_task, bob, "1") == "Task 1 is in_progress by alice."
    assert on_disk(lesson) == before
    lesson.complete_task(alice, "1")
    for call, sentence in not_yours:
        assert refused(call, alice, "1") == sentence.format("completed by alice")
    assert "completed by alice" in refused(lesson.release_task, lesson.LEAD, "1")
    assert refused(lesson.claim_task, bob, "1") == "Task 1 is completed by alice."


def test_a_task_of_another_run_belongs_to_nobody_here_even_if_the_name_is_the_same(lesson, agents):
    [alice] = agents(alice="coder")
    by_hand(lesson, "1", status="in_progress", owner="alice@20250101-000000-1")
    for call in (lesson.complete_task, lesson.release_task, lesson.claim_task):
        assert "in_progress by alice of the run 2025" in refused(call, alice, "1")
    assert ("1 by hand [in_progress by alice of the run 20250101-000000-1; once that has ended, the "
            "lead can give it back, or a person: /tasks release 1]") == lesson.list_tasks(alice)
    assert on_board(lesson) == ["in_progress"]


def test_the_lead_and_the_person_can_give_back_anybodys_task(lesson, agents, capsys):
    [alice] = agents(alice="coder")
    create(lesson, "one")
    for give_back in (lambda: lesson.release_task(lesson.LEAD, "1"),
                      lambda: lesson.obey("/tasks release 1")):
        lesson.claim_task(alice, "1")
        give_back()
        assert (on_disk(lesson)["1"]["status"], on_disk(lesson)["1"]["owner"]) == ("pending", None)
    assert capsys.readouterr().out == "Task 1 is pending again.\n"


def test_a_task_with_a_name_of_its_own_is_found_however_it_is_typed(lesson, capsys):
    by_hand(lesson, "Schema", status="in_progress", owner="bob@20250101-000000-1")
    lesson.obey(lesson.normal("/tasks release Schema"))
    assert capsys.readouterr().out == "Task schema is pending again.\n"
    assert on_board(lesson) == ["pending"]


def test_of_two_names_that_differ_by_case_the_exact_one_is_found(lesson):
    tasks = {id: lesson.Task(id, "", "", "pending", None, []) for id in ("A", "a")}
    assert [lesson.find_task(tasks, id).id for id in tasks] == ["A", "a"]


@pytest.mark.parametrize("line, answer", [
    ("/tasks release 1", "Task 1 cannot be given back: pending.\n"),
    ("/tasks release 9", "There is no task '9'. The board has: 1.\n"),
    ("/tasks release", "There is no task ''. The board has: 1.\n"),
    ("/tasks", "1 one [pending]\n"),
    ("／tasks", "1 one [pending]\n"),
])
def test_the_board_at_the_prompt(lesson, capsys, line, answer):
    create(lesson, "one")
    lesson.obey(lesson.normal(line))
    assert capsys.readouterr().out == answer


def test_the_list_is_in_the_order_of_the_numbers_and_has_a_line_for_each(lesson):
    create(lesson, *map(str, range(9)), "ten [completed]\n2 two [completed]")
    lines = lesson.list_tasks(lesson.LEAD).splitlines()
    assert [line.split()[0] for line in lines] == [str(number) for number in range(1, 11)]
    assert lines[-1] == "10 ten [completed] 2 two [completed] [pending]"


def test_a_board_that_cannot_be_used_is_a_sentence_and_the_prompt_goes_on(lesson, capsys):
    (lesson.WORKSPACE / ".tasks").write_text("a file")
    lesson.obey("/tasks")
    lesson.obey("/tasks release 1")
    assert capsys.readouterr().out.count(".tasks") == 2


def test_an_empty_board_is_said_to_be_empty(lesson):
    assert lesson.list_tasks(lesson.LEAD) == "The board is empty."
    assert lesson.scan_unclaimed_tasks(lesson.LEAD) == "There is none for you now."


@pytest.mark.parametrize("required, role, claimable", [
    ("tester", "tester", True), ("Tester", "tESTER", True), ("测试", "测试", True),
    ("ｔester", "tester", True), ("tester", "coder", False), ("tester", "qa tester", False),
    ("", "coder", True), (" ", "coder", True),
])
def test_a_role_must_fit_and_case_does_not_matter(lesson, agents, required, role, claimable):
    [alice] = agents(alice=role)
    create(lesson, "one", required_role=required)
    if claimable:
        lesson.claim_task(alice, "1")
        assert on_board(lesson) == ["in_progress"]
    else:
        assert refused(lesson.claim_task, alice, "1") == f"Task 1 is for the role '{required}'."
        assert on_board(lesson) == ["pending"]


def test_a_task_whose_role_nobody_has_is_listed_with_the_reason(lesson, agents):
    create(lesson, "one", required_role="tester")
    reason = "1 one [pending, for the role 'tester', which nobody here has]"
    assert lesson.list_tasks(lesson.LEAD) == reason
    alice, bob = agents(alice="coder", bob="Tester")
    assert lesson.list_tasks(lesson.LEAD) == "1 one [pending]"
    bob.close("STOPPED")
    assert lesson.list_tasks(lesson.LEAD) == reason


def test_a_task_that_everyone_here_has_given_back_is_listed_as_such(lesson, agents):
    alice, bob = agents(alice="coder", bob="tester")
    create(lesson, "one", required_role="coder")
    lesson.claim_task(alice, "1")
    lesson.release_task(alice, "1")
    assert lesson.list_tasks(lesson.LEAD) == (
        "1 one [pending, everyone here who could take it has had it]")
    agents(carol="coder")
    assert lesson.list_tasks(lesson.LEAD) == "1 one [pending]"


@pytest.mark.parametrize("fields", [
    {"id": "2"}, {"status": "paused"}, {"owner": 7}, {"blocked_by": "2"}, {"blocked_by": [1]},
    {"blocked_by": [["2"]]}, {"subject": None}, {"required_role": 1}, {"colour": "red"},
    {"owner": "bob@run"}, {"status": "in_progress"},
])
def test_a_task_that_was_edited_wrongly_is_reported_and_passed_over(lesson, agents, fields):
    by_hand(lesson, "1", **fields)
    passed_over(lesson, agents)


@pytest.mark.parametrize("content", [
    b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"id": "1"}', b"null", b"\"1\"",
])
def test_a_file_that_is_no_task_is_reported_and_passed_over(lesson, agents, content):
    by_hand(lesson, "1")
    (lesson.WORKSPACE / ".tasks" / "1.json").write_bytes(content)
    passed_over(lesson, agents)


@POSIX
def test_a_pipe_in_place_of_a_task_keeps_nobody_waiting(lesson):
    (lesson.WORKSPACE / ".tasks").mkdir()
    os.mkfifo(lesson.WORKSPACE / ".tasks" / "1.json")
    assert Task(lesson.list_tasks, lesson.LEAD).result() == (
        "1 1.json is no task: it is no file [invalid]")


def passed_over(lesson, agents):
    """Task 1 is shown as invalid, and nothing else is the matter."""
    path = lesson.WORKSPACE / ".tasks" / "1.json"
    content = path.read_bytes()
    [alice] = agents(alice="coder")
    create(lesson, "two")
    first, second = lesson.list_tasks(alice).splitlines()
    assert re.fullmatch(r"1 1\.json is no task: .+ \[invalid\]", first)
    assert second == "2 two [pending]"
    for call in (lesson.claim_task, lesson.complete_task, lesson.release_task):
        assert refused(call, alice, "1")
    assert work_off(lesson, alice) == ["2"]
    assert path.read_bytes() == content


@pytest.mark.parametrize("task_id", ["", "2", "../1", "1.json", "lock"])
def test_a_task_that_is_not_there_is_an_error_that_lists_the_board(lesson, agents, task_id):
    [alice] = agents(alice="coder")
    create(lesson, "one")
    for call in (lesson.get_task, lesson.claim_task, lesson.complete_task, lesson.release_task):
        assert refused(call, alice, task_id) == f"There is no task '{task_id}'. The board has: 1."


def test_a_board_that_cannot_be_written_changes_nothing(lesson, agents):
    [alice] = agents(alice="coder")
    create(lesson, "one")
    (lesson.WORKSPACE / ".tasks" / "next").mkdir()          # where a task is written first
    with pytest.raises(OSError):
        lesson.claim_task(alice, "1")
    assert (on_board(lesson), alice.claimed) == (["pending"], {})


def test_who_was_cut_off_claims_nothing_more(lesson, agents):
    [alice] = agents(alice="coder")
    create(lesson, "one")
    alice.state = "STOPPED"
    with pytest.raises(lesson.Stopped):
        lesson.claim_task(alice, "1")
    assert on_board(lesson) == ["pending"]


def test_agents_write_nothing_past_the_board(lesson, agents):
    [alice] = agents(alice="coder")
    create(lesson, "one")
    assert "harness" in refused(lesson.write_file, alice, ".tasks/1.json", "{}")
    assert json.loads(lesson.get_task(alice, "1")) == on_disk(lesson)["1"]
