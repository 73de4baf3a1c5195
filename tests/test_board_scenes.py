"""The offline player fills the board and works it off, in English and Chinese."""

import re
import subprocess
import sys

import pytest
from conftest import LIMIT, lesson_path, load, until
from protocols import come_to_rest
from test_board import on_disk
from test_deadlines import plan_that_waits

LESSON = "s17"
EARLY = ("shared",)


def subjects(stage):
    return [task["subject"] for _, task in sorted(on_disk(stage).items())]


@pytest.mark.parametrize("words, number, names, subject", [
    ("Create 3 tasks on the board, then spawn alice and bob. Watch them auto-claim and work.",
     3, ["alice", "bob"], "Create a file called schema.sql with a users table"),
    ("Put five tasks on the board. Spawn carol as a tester, and watch her claim them.",
     5, ["carol"], "Create a file called schema.sql with a users table"),
    ("在任务板上创建 3 个任务，然后派生 alice 和 bob，看他们自动认领、干活。",
     3, ["alice", "bob"], "创建一个名为 schema.sql 的文件，里面有一张 users 表"),
    ("在看板上放两个任务，再派生小明。看他自己认领。",
     2, ["小明"], "创建一个名为 schema.sql 的文件，里面有一张 users 表"),
])
def test_tasks_that_nobody_named_are_made_up_and_worked_off(troupe, words, number, names, subject):
    stage = troupe(words)
    assert sorted(stage.TEAM) == sorted(names) and subjects(stage)[0] == subject
    assert [task["status"] for task in on_disk(stage).values()] == ["completed"] * number
    assert len([path for path in stage.workspace.iterdir() if path.is_file()]) == number
    if number > 2:
        assert on_disk(stage)["3"]["blocked_by"] == ["1"]


@pytest.mark.parametrize("words, tasks", [      # (subject, what it waits for, role)
    ("Create 3 tasks on the board: create schema.sql with a users table, create config.py, then "
     "write the tests after the schema.",
     [("Create schema.sql with a users table", [], ""), ("Create config.py", [], ""),
      ("Write the tests", ["1"], "")]),
    ("Put two tasks on the board: write config.py; write the docs for a writer.",
     [("Write config.py", [], ""), ("Write the docs", [], "writer")]),
    ("Create a task for a tester: check if schema.sql exists.",
     [("Check if schema.sql exists", [], "tester")]),
    ("Create 3 tasks: schema, config and tests.",
     [("Write schema", [], ""), ("Write config", [], ""), ("Write tests", [], "")]),
    ("Create 2 tasks: write the config, and then write the tests.",
     [("Write the config", [], ""), ("Write the tests", ["1"], "")]),
    ("Add tasks to the board: 1. create a.txt 2. create b.txt after 1 3. read b.txt once both are "
     "done", [("Create a.txt", [], ""), ("Create b.txt", ["1"], ""),
              ("Read b.txt", ["1", "2"], "")]),
    ("在任务板上放三个任务：创建 schema.sql，创建 config.py，等 schema 写好后再写测试（由测试做）。",
     [("创建 schema.sql", [], ""), ("创建 config.py", [], ""), ("写测试", ["1"], "测试")]),
    ("创建 3 个任务：1、建 users 表；2、写后端配置；3、写测试，依赖 1 和 2。",
     [("建 users 表", [], ""), ("写后端配置", [], ""), ("写测试", ["1", "2"], "")]),
    ("创建两个任务：写配置，然后写测试。", [("写配置", [], ""), ("写测试", ["1"], "")]),
    ("Create 4 tasks: say hello; write b.md after task 1; then write c.txt; summarise everything "
     "after c.txt for a writer.",
     [("Say hello", [], ""), ("Write b.md", ["1"], ""), ("Write c.txt", ["2"], ""),
      ("Summarise everything", ["3"], "writer")]),
    ("Create 3 tasks: write a.py (tester); write b.py, only a tester may do it; write c.py, role "
     "writer.", [("Write a.py", [], "tester"), ("Write b.py", [], "tester"),
                 ("Write c.py", [], "writer")]),
    ("创建三个任务：写 a.md（测试员做）；写 b.md，由测试员做；写 c.md，给设计师做，在 a.md 之后。",
     [("写 a.md", [], "测试员"), ("写 b.md", [], "测试员"), ("写 c.md", ["1"], "设计师")]),
    ("Create tasks for the new API: schema, then endpoints, then tests.",
     [("Write schema", [], ""), ("Write endpoints", ["1"], ""), ("Write tests", ["2"], "")]),
    ("Create 2 tasks for a tester: write a.md; write b.md.",
     [("Write a.md", [], "tester"), ("Write b.md", [], "tester")]),
    ("Put these on the board:\n- write a.md\n- write b.md after a.md",
     [("Write a.md", [], ""), ("Write b.md", ["1"], "")]),
    ("Create 2 tasks: write one.md; write two.md (needs one.md).",
     [("Write one.md", [], ""), ("Write two.md", ["1"], "")]),
    ("创建两个任务：写 d.txt；写 e.txt，需先完成 d.txt。", [("写 d.txt", [], ""), ("写 e.txt", ["1"], "")]),
])
def test_tasks_are_read_with_what_they_wait_for_and_their_role(troupe, words, tasks):
    stage = troupe(words)
    assert [(task["subject"], task["blocked_by"], task["required_role"])
            for _, task in sorted(on_disk(stage).items())] == tasks
    assert [path for path in stage.workspace.iterdir() if path.is_file()] == []


def test_a_task_may_wait_for_one_that_was_on_the_board_before(troupe):
    stage = troupe("Create 2 tasks on the board.")
    troupe("Create a task: write q.md after task 1.")
    troupe("创建两个任务：写 r.md，在任务 2 之后；写 s.md，在 r.md 之后。")
    assert [task["blocked_by"] for _, task in sorted(on_disk(stage).items())] == [
        [], [], ["1"], ["2"], ["4"]]


def test_a_task_that_should_wait_for_one_that_is_not_there_is_not_made_in_silence(troupe, capsys):
    stage = troupe("Create 2 tasks: write a.md after task 9; write b.md after lunch.")
    assert subjects(stage) == ["Write b.md"]
    screen = capsys.readouterr().out
    assert "There is no task '9'" in screen and "did not understand this part: lunch" in screen


def test_a_teammate_can_fill_the_board_and_claim(troupe, stage, monkeypatch):
    monkeypatch.setattr(stage.lesson, "REMINDER_PAUSE", 0.01)
    troupe("Spawn gina. Tell gina to create 2 tasks: write g1.md; write g2.md.")
    assert subjects(stage) == ["Write g1.md", "Write g2.md"]
    assert {task["status"] for task in on_disk(stage).values()} == {"completed"}
    stage.lesson.create_task(stage.LEAD, "Write g3.md", required_role="assistant")
    troupe("Ask gina to claim task 3.")
    assert on_disk(stage)["3"]["status"] == "completed"


def test_roles_decide_who_takes_what(troupe):
    stage = troupe("Create 3 tasks: write config.py; write test_a.py for a tester; write the docs "
                   "for a designer. Spawn alice as a developer and bob as a tester.")
    first, second, third = [task for _, task in sorted(on_disk(stage).items())]
    assert second["owner"].startswith("bob@") and first["status"] == second["status"] == "completed"
    assert (third["status"], third["owner"]) == ("pending", None)


@pytest.mark.parametrize("subject", ["Fly to the moon", "Check whether nothing.txt exists",
                                     "飞到月球上去"])
def test_what_the_player_cannot_do_it_gives_back_and_says_so(troupe, subject):
    stage = troupe("Spawn alice.")
    stage.lesson.create_task(stage.LEAD, subject)
    until(lambda: "1" in stage.TEAM["alice"].claimed)
    come_to_rest(stage)
    assert (on_disk(stage)["1"]["status"], on_disk(stage)["1"]["owner"]) == ("pending", None)
    report = stage.mail("result")[-1]["content"]
    assert "back on the board" in report or "放回" in report


@pytest.mark.parametrize("words, told", [
    ("Show me the board.", "1 one [pending]"), ("看看任务板。", "1 one [pending]"),
    ("What tasks are there?", "1 one [pending]"), ("任务板上有什么？", "1 one [pending]"),
    ("Show task 1.", '"subject": "one"'), ("What is this?", "Create 3 tasks on the board")])
def test_the_lead_shows_the_board(troupe, capsys, words, told):
    stage = troupe("Hello!")
    stage.lesson.create_task(stage.LEAD, "one")
    capsys.readouterr()
    troupe(words)
    assert told in capsys.readouterr().out


def test_the_lead_gives_a_task_back(troupe):
    stage = troupe("Hello!")
    stage.lesson.create_task(stage.LEAD, "one")
    stage.lesson.claim_task(stage.LEAD, "1")
    troupe("Release task 1.")
    assert on_disk(stage)["1"]["status"] == "pending"


@pytest.mark.parametrize("title, status", [("Refactor, then test", "approved"),
                                           ("Refactor", "rejected")])
def test_as_a_reviewer_the_player_wants_the_result_to_be_checked(troupe, title, status):
    stage = troupe("Hello!")
    task, state = plan_that_waits(stage, title=title)
    stage.lesson.review_plans(stage.lesson.lead_decides)
    assert state.status == status


@pytest.fixture(scope="session")
def shared(request, helpers, tmp_path_factory):
    """Two programs in one folder, and in the end the board with their screens."""
    path = lesson_path(request.config, LESSON)
    return helpers.submit(work_side_by_side, path, tmp_path_factory.mktemp("shared"))


def work_side_by_side(path, folder):
    lesson = load(path)
    lesson.use_workspace(folder)
    for number in range(20):
        lesson.create_task(lesson.LEAD, f"Create a file called part_{number}.md")
    programs = [subprocess.Popen(
        [sys.executable, path, "--offline", "--workdir", folder], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, encoding="utf-8") for _ in range(2)]
    try:
        for program in programs:
            program.stdin.write("Spawn eve. Spawn finn.\n")
            program.stdin.flush()
        until(lambda: {task["status"] for task in on_disk(lesson).values()} == {"completed"})
        screens = [program.communicate("q\n", timeout=LIMIT)[0] for program in programs]
    finally:
        for program in programs:
            program.kill()
    return on_disk(lesson), screens


def test_two_programs_in_one_folder_share_the_board_and_do_nothing_twice(shared):
    board, screens = shared.result()
    claimed = [re.findall(r"claims task (\d+)", screen) for screen in screens]
    assert sorted(sum(claimed, []), key=int) == [str(number) for number in range(1, 21)]
    owners = {task["owner"] for task in board.values()}
    assert {owner.partition("@")[0] for owner in owners} <= {"eve", "finn"}
    assert "Traceback" not in "".join(screens)
