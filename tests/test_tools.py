"""The tools: what a command may do, where files may lie, and what models are told."""

import os
import re
import threading
from pathlib import Path

import pytest
from conftest import POSIX, Lifeline, Task, call, results_of, until

LESSON = "s15"

HOLDERS = {
    "lead": {"bash", "read_file", "write_file", "spawn_teammate", "list_teammates", "send_message",
             "check_inbox"},
    "alice": {"bash", "read_file", "write_file", "send_message", "list_teammates"},
}
OUTSIDE = ["..", "../x", "../workspace2/x", "a/../../x", "/etc/passwd", "/", "a/../..", "link/x",
           "link", "file-link", "deep/link/x"]
OF_THE_HARNESS = [".team", ".team/x", ".TEAM/x", ".Team", ".tasks", ".tasks/1.json", ".TASKS/x",
                  "./.team/x", "a/../.team/x", "team-link", "team-link/x"]
INSIDE = ["a.txt", "a/b/c/d.txt", "./a.txt", "a/../b.txt", "小明/计划.md", ".teams", ".task/x",
          "a/.team/x", "..a", "a b.txt", ".hidden"]


@pytest.fixture
def workspace(lesson, tmp_path, monkeypatch):
    """A workspace in which commands need no permission; around it lies what must stay as it is."""
    monkeypatch.setattr(lesson, "ALLOW_ALL", True)
    (tmp_path / "workspace2").mkdir()
    (tmp_path / "outside.txt").write_text("outside")
    return tmp_path / "workspace"


@pytest.fixture
def bash(lesson, workspace):
    return lambda command: lesson.bash(lesson.LEAD, command)


@pytest.fixture
def read(lesson, workspace):
    return lambda path: lesson.read_file(lesson.LEAD, path)


@pytest.fixture
def write(lesson, workspace):
    return lambda path, content="words": lesson.write_file(lesson.LEAD, path, content)


def tree(folder):
    """All that lies in a folder: path -> content."""
    return {path.relative_to(folder).as_posix(): path.is_file() and path.read_bytes()
            for path in sorted(folder.rglob("*"))}


def run(stage, *calls):
    """The results that the lead's model gets for calls of one answer."""
    stage.play(lead=[list(calls)])
    stage.say("Go.")
    return results_of(stage.calls("lead")[1])


# ── bash ─────────────────────────────────────────────────────────────

@POSIX
@pytest.mark.parametrize("command, output", [
    ("echo hello", "hello\n"),
    ("echo 你好 🎉", "你好 🎉\n"),
    ("printf 'a\\377\\376b'", "a\ufffd\ufffdb"),                                      # case 20
    ("echo out; echo err >&2; echo out", "out\nerr\nout\n"),
    ("true", ""),
])
def test_a_command_gives_its_output(bash, command, output):
    assert bash(command) == output


@pytest.fixture
def typed_line():
    """The learner has typed a line that nothing has read yet."""
    read_end, write_end = os.pipe()
    os.write(write_end, b"Spawn alice.\n")
    os.close(write_end)
    before = os.dup(0)
    os.dup2(read_end, 0)
    yield
    os.dup2(before, 0)
    os.close(before)
    os.close(read_end)


@POSIX
@pytest.mark.parametrize("command, output", [("cat", ""), ("read line; echo \"[$line]\"", "[]\n")])
def test_a_command_eats_no_line_of_the_learner(bash, typed_line, command, output):     # case 20
    assert bash(command) == output


@POSIX
@pytest.mark.parametrize("command, code", [("exit 3", "3"), ("echo half; false", "1"),
                                           ("no-such-command-here", "127")])
def test_an_exit_code_is_told(bash, command, code):
    assert re.search(rf"exit code {code}\b", bash(command))


@POSIX
def test_long_output_is_cut_with_a_note(lesson, bash):                               # case 20
    output = bash("echo start; head -c 5000000 /dev/zero | tr '\\0' x")
    assert output.startswith("start\nxxx") and "cut" in output[-60:]
    assert len(output) < lesson.MAX_OUTPUT + 100


@POSIX
def test_output_up_to_the_limit_is_not_cut(lesson, bash):
    assert bash(f"head -c {lesson.MAX_OUTPUT} /dev/zero | tr '\\0' x") == "x" * lesson.MAX_OUTPUT


@POSIX
def test_a_command_runs_in_the_workspace(bash, workspace):
    assert bash("pwd -P").strip() == str(workspace.resolve())


@POSIX
def test_a_command_gets_the_environment_without_the_models_variables(bash, monkeypatch):
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL",
                 "ANTHROPIC_MODEL", "anthropic_api_key"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("OF_THE_LEARNER", "kept")
    environment = bash("env")
    assert "anthropic" not in environment.casefold() and "secret" not in environment
    assert "OF_THE_LEARNER=kept" in environment


@POSIX
def test_the_time_limit_ends_a_command_with_all_that_it_started(lesson, bash, workspace,
                                                                monkeypatch):
    monkeypatch.setattr(lesson, "COMMAND_TIMEOUT", 0.2)
    line = Lifeline(workspace / "line")
    with pytest.raises(TimeoutError, match="0.2 seconds"):
        bash("sleep 60 > line & (sleep 60 > line; true) & sleep 60")
    until(lambda: not line.held())


@POSIX
def test_a_child_in_the_background_does_not_hold_the_call(bash, workspace):
    os.mkfifo(workspace / "go")
    assert bash("(read line < go; echo $line > late.txt) & echo started") == "started\n"
    assert not (workspace / "late.txt").exists()
    (workspace / "go").write_text("late\n")
    until(lambda: (workspace / "late.txt").exists())


@POSIX
def test_two_commands_run_at_once_and_keep_their_output_apart(lesson, bash, workspace):
    os.mkfifo(workspace / "meet")
    tasks = [Task(bash, "read line < meet; echo got $line"),
             Task(bash, "echo word > meet; echo put")]
    assert [task.result() for task in tasks] == ["got word\n", "put\n"]


# ── Where files may lie ──────────────────────────────────────────────

@pytest.fixture
def links(workspace, tmp_path):
    """Links in the workspace that lead out of it, and into the harness's folders."""
    (workspace / "deep").mkdir()
    for name in ("link", "deep/link"):
        (workspace / name).symlink_to(tmp_path, target_is_directory=True)
    (workspace / "file-link").symlink_to(tmp_path / "outside.txt")
    (workspace / ".team").mkdir()
    (workspace / "team-link").symlink_to(workspace / ".team", target_is_directory=True)


@pytest.mark.parametrize("path", OUTSIDE + OF_THE_HARNESS)
def test_a_path_that_is_refused_is_neither_read_nor_written(lesson, read, write, links, tmp_path,
                                                            path):
    before = tree(tmp_path)
    reason = "outside" if path in OUTSIDE else "harness"
    for use in (lesson.safe_path, read, write):
        with pytest.raises(ValueError, match=re.escape(path)) as caught:
            use(path)
        assert reason in str(caught.value)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("path", INSIDE)
def test_a_path_inside_is_written_and_read(lesson, read, write, workspace, path):
    assert lesson.safe_path(path) == Path(os.path.normpath(workspace.resolve() / path))
    assert path in write(path, "你好\n")
    assert read(path) == "你好\n"
    assert lesson.safe_path(path).read_text(encoding="utf-8") == "你好\n"


def test_an_absolute_path_inside_is_fine(read, write, workspace):
    write(str(workspace / "a.txt"))
    assert read("a.txt") == "words"


def test_a_link_inside_is_followed(read, write, workspace):
    write("real/a.txt")
    (workspace / "short").symlink_to(workspace / "real", target_is_directory=True)
    write("short/a.txt", "new")
    assert read("real/a.txt") == "new"


def test_a_null_in_a_path_is_refused(read, write, workspace):
    for use in (read, write):
        with pytest.raises(ValueError):
            use("a\0b")
    assert tree(workspace) == {}


# ── write_file and read_file ─────────────────────────────────────────

def test_readers_see_only_whole_versions(write, workspace):
    versions = [letter * 300_000 for letter in "abc"]
    write("large.txt", versions[0])
    start, done = threading.Barrier(3), threading.Event()

    def look():
        start.wait()
        seen = set()
        while not done.is_set():
            seen.add((workspace / "large.txt").read_text())
        return seen

    readers = [Task(look) for _ in range(2)]
    start.wait()
    for number in range(60):
        write("large.txt", versions[number % 3])
    done.set()
    for reader in readers:
        assert reader.result() <= set(versions)
    assert list(tree(workspace)) == ["large.txt"]


def test_writers_of_one_file_at_one_moment_leave_one_whole_version(write, workspace):
    start = threading.Barrier(4)

    def rewrite(letter):
        start.wait()
        for _ in range(20):
            write("one.txt", letter * 50_000)

    for task in [Task(rewrite, letter) for letter in "abcd"]:
        task.result()
    assert (workspace / "one.txt").read_text() in [letter * 50_000 for letter in "abcd"]
    assert list(tree(workspace)) == ["one.txt"]


@pytest.mark.parametrize("path", [".", "folder", "file/inside", "x" * 300])
def test_a_write_that_fails_leaves_no_stray_file(write, workspace, tmp_path, path):
    (workspace / "folder").mkdir()
    (workspace / "file").write_text("as it was")
    before = tree(tmp_path)
    with pytest.raises(OSError):
        write(path)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("content, stands", [
    ("", ""), ("a\r\nb\rc\n", "a\r\nb\rc\n"), ("a\ud800b", "a\ufffdb"), ("\ud83d\ude00", "😀"),
    ("\ufeffx", "\ufeffx"), ("a\u2028b\0c", "a\u2028b\0c")])
def test_content_is_written_as_it_is_but_for_half_characters(write, workspace, content, stands):
    write("a.txt", content)
    assert (workspace / "a.txt").read_bytes() == stands.encode()


def test_a_long_file_is_cut_with_a_note(lesson, read, workspace):
    (workspace / "exact.txt").write_text("x" * lesson.MAX_OUTPUT)
    (workspace / "long.txt").write_text("x" * (lesson.MAX_OUTPUT + 1))
    assert read("exact.txt") == "x" * lesson.MAX_OUTPUT
    assert read("long.txt").startswith("x" * lesson.MAX_OUTPUT + "\n")
    assert "cut" in read("long.txt")[-60:]


def test_bytes_that_are_no_text_are_replaced(read, workspace):
    (workspace / "a.bin").write_bytes(b"a\xff\xfeb")
    assert read("a.bin") == "a\ufffd\ufffdb"


@pytest.mark.parametrize("path", ["missing.txt", "folder", "no/such/folder.txt", "."])
def test_what_cannot_be_read_is_an_error(read, workspace, path):
    (workspace / "folder").mkdir()
    with pytest.raises(OSError):
        read(path)


# ── What models are told ─────────────────────────────────────────────

def test_each_agent_holds_its_tools_and_no_other(stage):
    stage.spawn("alice")
    stage.until_rest()
    for agent, names in HOLDERS.items():
        assert {tool["name"] for tool in stage.calls(agent)[0]["tools"]} == names


def test_every_schema_says_what_the_tool_does_and_takes(stage):
    stage.say("Hello")
    tools = {tool["name"]: tool for tool in stage.calls("lead")[0]["tools"]}
    for tool in tools.values():
        schema = tool["input_schema"]
        assert len(tool["description"]) > 20
        assert schema["type"] == "object"
        assert set(schema["required"]) <= set(schema["properties"])
        assert all(value["type"] in ("string", "boolean", "integer", "array")
                   for value in schema["properties"].values())
    takes = {name: list(tool["input_schema"]["properties"]) for name, tool in tools.items()}
    assert takes == {
        "bash": ["command"], "read_file": ["path"], "write_file": ["path", "content"],
        "spawn_teammate": ["name", "role", "prompt"], "list_teammates": [], "check_inbox": [],
        "send_message": ["to", "content"]}
    assert all(tool["input_schema"]["required"] == takes[name] for name, tool in tools.items())


WRITE = {"path": "a.txt", "content": "words"}
FAULTY_ARGUMENTS = {
    "missing": ({"path": "a.txt"}, "content"),
    "all missing": ({}, "path"),
    "unknown": ({**WRITE, "mode": "w"}, "mode"),
    "the agent": ({**WRITE, "agent": "lead"}, "agent"),
    "a number": ({**WRITE, "path": 7}, "path"),
    "null": ({**WRITE, "content": None}, "content"),
    "a list": ({**WRITE, "content": ["words"]}, "content"),
    "an object": ({**WRITE, "path": {"a": 1}}, "path"),
    "true": ({**WRITE, "content": True}, "content"),
}


@pytest.mark.parametrize("arguments, named", FAULTY_ARGUMENTS.values(), ids=FAULTY_ARGUMENTS)
def test_an_argument_that_does_not_fit_is_named(stage, arguments, named):
    [result] = run(stage, call("write_file", **arguments))
    assert result["is_error"] and f"'{named}'" in result["content"]
    assert "\n" not in result["content"]
    assert not (stage.workspace / "a.txt").exists()


@pytest.mark.parametrize("name", ["fly", "Bash", "submit_plan", "__init__"])
def test_an_unknown_tool_is_an_error_that_names_it(stage, name):
    [result] = run(stage, call(name, command="ls"))
    assert result["is_error"] and name in result["content"]


@pytest.mark.parametrize("name", sorted(HOLDERS["lead"] - HOLDERS["alice"]))
def test_a_teammate_cannot_use_the_leads_tools(stage, name):
    arguments = {"name": "bob", "role": "tester", "prompt": "Go."} if "spawn" in name else {}
    stage.spawn("alice", [call(name, **arguments)])
    until(lambda: len(stage.calls("alice")) == 2)
    [result] = results_of(stage.calls("alice")[1])
    assert result["is_error"] and name in result["content"]
    assert list(stage.TEAM) == ["alice"]


def test_failing_calls_beside_good_ones_get_their_results_in_order(stage):
    results = run(stage, call("read_file", path="a.txt"), call("fly"), call("write_file", **WRITE),
                  call("read_file", path="../x"), call("read_file", path="a.txt"),
                  call("read_file", path="."))
    assert [result.get("is_error", False) for result in results] == [True, True, False, True,
                                                                     False, True]
    assert results[4]["content"] == "words"
    assert all(result["content"] for result in results)


def test_no_output_is_no_empty_result(stage, monkeypatch):
    monkeypatch.setattr(stage.lesson, "ALLOW_ALL", True)
    (stage.workspace / "empty.txt").write_text("")
    assert all(result["content"].strip() for result in run(
        stage, call("bash", command="exit 0"), call("read_file", path="empty.txt"),
        call("check_inbox"), call("list_teammates")))


def test_check_inbox_gives_new_mail_once(stage):
    stage.BUS.send("alice", "lead", "All good.", "result")
    first, second = run(stage, call("check_inbox"), call("check_inbox"))
    assert '<message from="alice" type="result">All good.</message>' in first["content"]
    assert "All good." not in second["content"]


def test_the_sender_is_the_one_who_calls(stage):
    stage.spawn("alice", [call("send_message", to="lead", content="I am bob.")])
    until(lambda: stage.mail("message"))
    assert [message["from"] for message in stage.mail("message")] == ["alice"]
